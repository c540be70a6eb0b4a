"""Which variant a problem gets without a winners file, and that the choice says where it comes from."""

from __future__ import annotations

import pytest

from opbench.results.files import read_run
from opbench.shipping.choosing import choose_cases, find_target
from support.checks.errors import refuses, refuses_name
from support.common import CATALOG, ROOT

MEASURED = "conv2d(n=8,c=64,h=56,w=56,k=64,r=3,s=3,padding=1)"
UNMEASURED = "conv2d(n=2,c=8,h=9,w=9,k=8,r=3,s=3)"


def test_a_measured_problem_gets_the_fastest_of_the_committed_runs() -> None:
    found = choose_cases([MEASURED], CATALOG, None, find_target("h200"), "f32")
    (case,) = found.cases
    quick = read_run(ROOT / "reports" / "h200" / "quick")
    own = [r for r in quick.results if r.case.endswith(MEASURED.removeprefix("conv2d")) and r.operator == "conv2d"]
    times = {r.variant: r.measurement.median_s for r in own if r.measurement and not r.library}
    assert case.variant.name == min(times, key=times.__getitem__) and "H200" in found.time_notes[case.name]
    (note,) = found.notes
    assert case.variant.name in note and "(reports/h200/quick)" in note and "committed runs" in note


def test_an_older_winners_file_still_serves_its_gpu() -> None:
    found = choose_cases([MEASURED], CATALOG, None, find_target("h100"), "f32")
    (case,), (note,) = found.cases, found.notes
    assert "H100" in found.time_notes[case.name] and "reports/h100/" in note and "committed runs" in note


def test_a_problem_that_no_run_measured_gets_what_is_ranked_first() -> None:
    found = choose_cases([UNMEASURED], CATALOG, None, find_target("sm_90"), "f32")
    (case,) = found.cases
    assert f"conv2d{case.problem}" == UNMEASURED and not case.variant.is_library and found.time_notes[case.name] == ""
    assert "no committed run measured it" in found.notes[0] and "opbench book" in found.notes[0]


@pytest.mark.parametrize("gpu", ["sm_80", "sm_89"])
def test_what_a_gpu_cannot_run_is_not_chosen(gpu: str) -> None:
    (case,) = choose_cases(["matmul(m=256,n=256,k=256)"], CATALOG, None, find_target(gpu), "f32").cases
    assert "9.0" not in case.variant.compute_capability


def test_mistakes_in_a_problem_name_the_axes_and_an_operator_names_a_problem() -> None:
    with refuses_name("axis", "q", where="conv2d"):
        choose_cases(["conv2d(n=2,q=9)"], CATALOG, None, find_target("sm_90"), "f32")
    with refuses("no-winners-file", "conv2d"):
        choose_cases(["conv2d"], CATALOG, None, find_target("sm_90"), "f32")
