"""Cases: their printed names are selectors, their launches have every number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from opbench.kernels.case import select
from opbench.kernels.case_names import CASE_NAME, CaseParts, split_case
from opbench.kernels.variant import print_config
from opbench.running.suite import read_suite
from support.checks.errors import refuses
from support.common import CATALOG

CASES = [*read_suite(Path("quick"), CATALOG, "cpu").cases, *read_suite(Path("quick"), CATALOG, "cuda").cases]


def test_printed_names_select_exactly_themselves() -> None:
    for case in CASES:
        assert [c.name for c in select(CASES, [case.name])] == [case.name]
        assert CASE_NAME.match(case.name)


def test_a_name_is_split_into_its_parts() -> None:
    for case in CASES:
        parts = split_case(case.name)
        assert f"{case.variant.operator}/{parts.variant}" == case.variant.id
        assert (parts.config, parts.problem) == (print_config(case.config), str(case.problem))
    assert split_case("relu/scalar") == CaseParts("", "", "")


def test_globs_and_variant_names_select() -> None:
    assert {c.variant.operator for c in select(CASES, ["relu/*"])} == {"relu"}
    assert {c.variant.id for c in select(CASES, ["relu/scalar"])} == {"relu/scalar"}
    assert all(c.config["TILE"] == 32 for c in select(CASES, ["matmul/shared_tile[TILE=32]*"]))


def test_a_pattern_without_a_case_is_an_error() -> None:
    with refuses("no-match", "--case", value="relu/nothing"):
        select(CASES, ["relu/nothing"])


def test_launches_are_complete_and_within_limits() -> None:
    for case in (case for case in CASES if not case.variant.is_library and not case.unmet_requirement()):
        kernels = [step for step in case.launches(132) if not step.zero]
        assert kernels, case.name
        for step in kernels:
            assert 1 <= math.prod(step.block) <= 1024, case.name
            assert min(step.grid) >= 1 and step.grid[0] < 2**31 and max(step.grid[1:]) <= 65535, case.name
            assert all(abs(a) < 2**31 for a in step.args if isinstance(a, int)), case.name


@pytest.mark.parametrize(("epilogue", "early"), [("bias", ("weight", "bias")), ("none", ("weight",))])
def test_an_optional_early_input_is_that_of_the_problem(epilogue: str, early: tuple[str, ...]) -> None:
    case = CATALOG.case(f"linear/split_k_stream_early[ROWS=4,DEPTH=2,THREADS=128](m=1,n=8,k=8,epilogue={epilogue})")
    assert [step.early for step in case.launches(1)] == [early]
