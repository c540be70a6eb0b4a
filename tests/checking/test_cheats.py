"""Kernels that are wrong, hang, crash, lie or crawl: each must be caught, and cost only its own cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opbench import api
from opbench.checking.checking import trace_case
from opbench.insight.diagnosis import diagnose
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.running import targets
from support.common import CATALOG, CHEATS, is_among, reports, said

pytestmark = pytest.mark.usefixtures("forked_workers")

FILES = sorted(CHEATS.glob("*.cu"))


SLOW = sorted((CHEATS / "slow").glob("*.cu"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_cheat_is_caught(path: Path) -> None:
    results = api.check([path], backend="cpu", random_shapes=1, time_limit_s=5.0, cpu_only=True)
    caught = [report for r in results if r.status != "right" for report in reports(r)]
    assert caught, [r.case for r in results]
    assert is_among(said(path, "expect"), caught), caught


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("folds_an_odd_count_onto_itself", "(n=2048)", "(n=31)"),
        ("leaves_the_tail_of_the_tree_unset", "(n=1021)", "(n=127)"),
        ("adds_block_sums_without_atomics", "(n=127)", "(n=1021)"),
        ("repeats_the_tail_in_every_block", "(n=2048)", "(n=4099)"),
        ("rounds_the_vectors_up", "(n=4096)", "(n=4099)"),
        ("reads_float4_from_odd_rows", "(rows=67,cols=64)", "(rows=257,cols=131)"),
        ("reads_float2_from_odd_rows", "(n=2,c=3,h=16,w=24)", "(n=1,c=3,h=17,w=31)"),
        ("shuffles_from_lanes_that_left", "(n=2048)", "(n=33)"),
        ("barrier_inside_the_guard", "(n=4096)", "(n=4099)"),
        ("divides_by_an_overflowing_product", "(rows=3,cols=5)", "(rows=257,cols=131)"),
    ],
)
def test_some_mistakes_show_at_some_sizes_only(name: str, right: str, wrong: str) -> None:
    """Odd sizes, several blocks, large indices: elsewhere nothing is wrong, and nothing is found."""
    results = api.check([CHEATS / f"{name}.cu"], backend="cpu", random_shapes=0, cases=[f"*{right}", f"*{wrong}"])
    assert {r.problem: r.status for r in results} == {right: "right", wrong: "wrong"}


@pytest.mark.parametrize("path", SLOW, ids=lambda p: p.stem)
def test_what_is_right_and_slow_is_told_where(path: Path) -> None:
    """Counts, not time: what `opbench explain` says of a traced run at the size that the file names."""
    results = api.check([path], backend="cpu", random_shapes=1)
    assert [f"{r.case}: {r.reason}" for r in results if r.status != "right"] == []
    (variant,) = targets.own_variants(path, CATALOG)
    case = Case(variant, variant.configs[0], CATALOG.operator(variant.operator).parse(said(path, "at")))
    traffic, findings = trace_case(case)
    assert findings == []
    found = diagnose(Subject.of_case(case, CATALOG.variants(variant.operator)), traffic, {str(path): path.read_text()})
    problems = [f"{Path(p.file).name}:{p.line}: {p.kind}: {p.evidence}" for p in found]
    assert any(problem.startswith(said(path, "expect")) for problem in problems), problems


def test_every_line_that_a_cheat_names_is_its_own() -> None:
    """A line that moved must move in the expectation too: it is code, in the file of that name."""
    for path in [*FILES, *SLOW]:
        lines = path.read_text().splitlines()
        for name, number in re.findall(r"(\w+\.cu):(\d+)", said(path, "expect")):
            assert name == path.name
            assert not lines[int(number) - 1].startswith(("//", "}")), f"{name}:{number} is no code"


def test_a_crash_costs_only_its_own_cases(relu_file: Path) -> None:
    names = ("counts_without_end", "writes_far_away", "does_not_compile", "block_too_large")
    cheats = [CHEATS / f"{name}.cu" for name in names]
    results = api.check([*cheats, relu_file], backend="cpu", random_shapes=0, time_limit_s=10.0)
    assert {r.status for r in results if r.variant == "mine"} == {"right"}
    assert {r.variant for r in results if r.status == "failed"} >= {
        "counts_without_end",
        "does_not_compile",
        "block_too_large",
    }


def test_a_compiler_error_shows_file_and_line() -> None:
    result = api.check([CHEATS / "does_not_compile.cu"], backend="cpu", random_shapes=0)[0]
    line = next(
        i
        for i, text in enumerate((CHEATS / "does_not_compile.cu").read_text().splitlines(), 1)
        if "undeclared_name" in text
    )
    assert f"does_not_compile.cu:{line}" in result.reason and "undeclared_name" in result.reason
