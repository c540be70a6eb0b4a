"""Twenty wrong and twenty tricky right kernels: each is judged as what it is, a wrong one for what its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.results.result import Result
from support.common import ROOT, is_among, reports, said

pytestmark = pytest.mark.usefixtures("forked_workers")

TRUTH = ROOT / "tests" / "truth"


def judged(folder: str) -> dict[Path, list[Result]]:
    """Every kernel of a folder at a size of a few blocks and at one of many, all in one call."""
    paths = sorted((TRUTH / folder).glob("*.cu"))
    assert len(paths) >= 20
    results = api.check(
        paths, backend="cpu", random_shapes=0, cases=["*(n=1021)", "*(n=4099)"], cpu_only=True, time_limit_s=30.0
    )
    return {path: [r for r in results if r.variant == path.stem] for path in paths}


def test_no_right_kernel_is_accused() -> None:
    accused = {
        path.stem: [f"{r.problem} {r.status}: {r.reason}" for r in results if r.status != "right"] or ["no result"]
        for path, results in judged("right").items()
        if len(results) != 2 or any(r.status != "right" for r in results)
    }
    assert accused == {}


def test_every_wrong_kernel_is_told_why() -> None:
    missed = {}
    for path, results in judged("wrong").items():
        lines = [line for r in results for line in reports(r)]
        if any(r.status == "right" for r in results) or not is_among(said(path, "expect"), lines):
            missed[path.stem] = lines
    assert missed == {}


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("a_helper_steps_without_syncwarp", "(in a_helper_steps_without_syncwarp.cu:10)"),
        ("reads_on_with_many_arguments", "reads_on_with_many_arguments.cu:16: out-of-bounds"),
        (
            "waits_for_a_flag_nobody_sets",
            "256 threads from thread 0 on: at line 14 for another value in byte 0 of shared array 'ready'",
        ),
    ],
)
def test_a_finding_tells_who(name: str, both: str) -> None:
    """A helper's line with the line that calls it, of a kernel its line alone; who waits for what."""
    (result,) = api.check(
        [TRUTH / "wrong" / f"{name}.cu"], backend="cpu", random_shapes=0, cases=["*(n=1021)"], cpu_only=True
    )
    assert any(both in line for line in reports(result))
