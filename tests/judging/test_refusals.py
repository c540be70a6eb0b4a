"""Kernels that cheat, each with the code of its refusal, and honest kernels, which are accepted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.judging.codes import CODES
from opbench.judging.document import VerdictDocument
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from support.common import CHEATS, kernel_variants, said
from support.daily import daily_sample

OPTIONS = JudgeOptions(backend="cpu", time_limit_s=60.0)
"""The seed is secret, as it is for users: a code must not depend on it."""
CPU = sorted((CHEATS / "judge").glob("*.cu"))
TIME = [path for path in sorted((CHEATS / "time").glob("*.cu")) if "\n// refused: " in path.read_text()]
SIGNS = [path for path in sorted((CHEATS / "time").glob("*.cu")) if "\n// sign: " in path.read_text()]
HONEST = [*sorted((CHEATS / "time" / "honest").glob("*.cu")), *sorted((CHEATS / "slow").glob("*.cu"))]
VARIANTS_A_DAY = 1
MOST_CONFIGS = 24
"""Variants with more configs take minutes; tests/test_variants.py checks them."""


def why(document: VerdictDocument) -> str:
    """Return the reason of a verdict with the secret seed, which repeats the verdict."""
    return f"{document.reason} (seed {document.seed})"


@pytest.mark.parametrize("path", [*CPU, *TIME], ids=lambda p: p.stem)
def test_a_cheat_is_refused_with_its_code(path: Path) -> None:
    codes = said(path, "refused").split("|")
    # A kernel that never ends takes all of its limit.
    document = judge([path], replace(OPTIONS, time_limit_s=5.0) if codes == ["time-limit"] else OPTIONS)
    assert document.overall == "refused", why(document)
    assert document.code in codes, why(document)
    assert document.next_step.sentence


@pytest.mark.parametrize("path", SIGNS, ids=lambda p: p.stem)
def test_what_only_a_gpu_can_refuse_has_a_sign(path: Path) -> None:
    document = judge([path], OPTIONS)
    signs = {sign.code: sign for sign in document.signs.seen}
    assert document.overall != "refused", why(document)
    assert signs[said(path, "sign")].effect == "not decided"


@pytest.mark.parametrize("path", HONEST, ids=lambda p: p.stem)
def test_an_honest_kernel_is_accepted(path: Path) -> None:
    document = judge([path], OPTIONS)
    assert document.overall == "accepted", why(document)


def test_shipped_variants_are_accepted() -> None:
    """A sample, another one each day; with OPBENCH_LONG all."""
    chosen = [v for v in kernel_variants() if len(v.configs) <= MOST_CONFIGS and not v.compute_capability]
    if not os.environ.get("OPBENCH_LONG"):
        chosen = daily_sample(chosen, VARIANTS_A_DAY)
    documents = {v.id: judge([v.id], replace(OPTIONS, time_limit_s=60.0, drawn=1)) for v in chosen}
    assert {name: why(one) for name, one in documents.items() if one.overall != "accepted"} == {}


def test_there_are_many_ways_to_cheat() -> None:
    codes = {code for path in [*CPU, *TIME] for code in said(path, "refused").split("|")}
    assert codes <= CODES.keys() and len(codes) >= 15
    assert len([*CPU, *TIME, *SIGNS]) >= 60


def test_a_name_is_a_kernels_own() -> None:
    for path in CPU:
        assert f"__global__ void {path.stem}(" in path.read_text()
