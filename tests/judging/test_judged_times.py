"""Verdicts on a machine with a GPU, from fabricated runs: times, rivals, limits, and what a time refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.insight.advice import UNKNOWN_GAIN
from opbench.judging import judge as judging
from opbench.judging.document import Settings, VerdictDocument
from opbench.judging.judge import judge_submission, timing_suite
from opbench.judging.page import verdict_page
from opbench.judging.submission import SubmittedKernels, read_submission
from opbench.judging.task import Limits, Task
from opbench.judging.verify import compare
from opbench.results.advice import NEAR_BOUND
from opbench.results.files import Run
from opbench.results.result import Result
from support.builders.runs import result, run
from support.common import RELU, WRONG

SETTINGS = Settings("cuda", "h200", 0, 60.0)
OWN, BEST, LIBRARY = result("mine", 4e-3), result("vec4", 6e-3), result("torch", 8e-3, library=True)

Verdict = Callable[..., VerdictDocument]


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> SubmittedKernels:
    path = tmp_path_factory.mktemp("kernels") / "mine.cu"
    path.write_text(RELU)
    return read_submission([str(path)], Task(), None, (), False)


@pytest.fixture(scope="module")
def on_the_cpu(submitted: SubmittedKernels) -> Run:
    """The checks on the CPU, which every verdict of this file shares."""
    kept: list[Run] = []
    genuine = judging._cpu_run

    def keep(*arguments: object) -> Run:
        kept.append(genuine(*arguments))  # type: ignore[arg-type]
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "_cpu_run", keep)
        judge_submission(submitted, replace(SETTINGS, backend="cpu"), 7, True)
    return kept[0]


@pytest.fixture
def verdict(submitted: SubmittedKernels, on_the_cpu: Run, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    def judged(timed: list[Result], checked: Result | None = None, task: Task = Task()) -> VerdictDocument:  # noqa: B008
        runs = run([checked or result("mine")]), run(timed)
        monkeypatch.setattr(judging, "_cpu_run", lambda *_: on_the_cpu)
        monkeypatch.setattr(judging, "_gpu_runs", lambda *_: runs)
        return judge_submission(replace(submitted, task=task), SETTINGS, 7, True)

    return judged


def test_a_verdict_with_a_gpu_has_times_and_speedups(verdict: Verdict) -> None:
    document = verdict([OWN, BEST, LIBRARY])
    assert document.overall == "accepted" and document.lacking == ()
    (time,) = document.timed.times
    assert time.median_s == pytest.approx(4e-3, rel=0.05) and time.low_s <= time.median_s <= time.high_s
    assert time.peak_share and document.timed.gpu == "NVIDIA H200"
    rivals = {rival.kind: rival for rival in document.compared.rivals}
    assert rivals["library"].speedup == pytest.approx(2.0, rel=0.05)
    assert rivals["best known"].speedup == pytest.approx(1.5, rel=0.05)
    assert all(r.measured_here and r.speedup_low < r.speedup < r.speedup_high for r in rivals.values())  # type: ignore[operator]
    assert "Times on NVIDIA H200" in verdict_page(document)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(time_s=1e-3), "too-slow"),
        (Limits(speedup=3.0), "too-little-speedup"),
        (Limits(time_s=1.0, speedup=1.5), ""),
    ],
)
def test_limits_of_a_task_hold_for_times(verdict: Verdict, limits: Limits, code: str) -> None:
    document = verdict([OWN, BEST, LIBRARY], task=Task(limits=limits))
    assert (document.code, document.overall) == (code, "refused" if code else "accepted")


@pytest.mark.parametrize(
    ("timed", "code"),
    [
        (result("mine", 1e-6, status="invalid", reason="impossible"), "impossible-time"),
        (result("mine", status="invalid", reason="keeps state"), "keeps-state"),
    ],
)
def test_an_invalid_time_is_a_refusal(verdict: Verdict, timed: Result, code: str) -> None:
    document = verdict([timed, LIBRARY])
    assert (document.overall, document.code, document.timed.times) == ("refused", code, ())


def test_what_is_wrong_on_the_gpu_alone_is_a_refusal(verdict: Verdict) -> None:
    document = verdict([LIBRARY], checked=result("mine", status="wrong", reason="wrong there"))
    assert document.overall == "refused" and document.right.status == "failed"


def test_a_machine_without_a_gpu_verifies_all_but_times(verdict: Verdict, submitted: SubmittedKernels) -> None:
    stored = verdict([OWN, BEST, LIBRARY])
    here = judge_submission(submitted, replace(SETTINGS, backend="cpu"), 7, True)
    found = compare(stored, here)
    assert found.differences == () and found.notes


def test_rivals_are_libraries_and_winners_of_committed_runs(submitted: SubmittedKernels) -> None:
    suite = timing_suite(submitted, SETTINGS, 7)
    own = {case.variant.name for case in suite.cases if case.variant.id in suite.own_variant_ids}
    rivals = {case.variant.name for case in suite.cases} - own
    assert own == {"mine"} and "torch" in rivals and rivals & {"vec4", "vec4_unrolled"}
    assert "scalar" not in rivals


def test_a_kernel_that_the_cpu_refused_does_not_run_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(WRONG)
    launched: list[object] = []
    monkeypatch.setattr(judging, "_gpu_runs", lambda *given: launched.append(given))
    found = judge_submission(read_submission([str(path)], Task(), None, (), False), SETTINGS, 7, True)
    assert (found.overall, found.timed.status, launched) == ("refused", "not decided", [])
    assert found.timed.times == () and any("GPU" in line for line in found.lacking)


def test_the_next_step_counts_on_the_measured_time(verdict: Verdict) -> None:
    (time,) = verdict([OWN]).timed.times
    assert time.peak_share
    far, near = (
        verdict([result("mine", 20 * 4e-3 * time.peak_share)]),
        verdict([result("mine", 4e-3 * time.peak_share)]),
    )
    assert NEAR_BOUND in near.next_step.sentence
    assert NEAR_BOUND not in far.next_step.sentence and UNKNOWN_GAIN not in far.next_step.sentence
