"""A measurement becomes a result: no GPU, a worker that answers from tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault
from opbench.report import write_report
from opbench.results.files import FILE, read_run
from opbench.results.result import RELAUNCH, RecordedLaunch, Verdict, exit_code
from opbench.results.rows import rows
from opbench.running.protocol import (
    BuildModules,
    CheckCase,
    MeasureCases,
    ModuleBuilt,
    Probe,
    unpack,
)
from opbench.running.runner import RunSetup, run_suite
from opbench.running.suite import read_suite
from opbench.running.worker import Worker, WorkerLost
from support.checks.errors import refuses, refuses_setting
from support.common import CATALOG
from support.fakes.worker import PEAKS, FakeWorker, run_fake

BYTES = 2 * 4 * 67108864


PROBED = {"dram_bytes_per_s": "copy/vec4[BLOCK=256](n=268435456)", "fp32_flops_per_s": "fma/chains_8(n=2112,rounds=4)"}


def test_other_text_of_the_same_machine_code_is_the_same_measurement(fake: Any, tmp_path: Path) -> None:
    """A header that other kernels use was edited: what is right, and is launched as before, is not measured again."""
    ask, codes, asked = fake.ask, {"scalar": "one", "vec4": "two", "grid_stride": "", "vec4_unrolled": "four"}, []

    def answer(self: Any, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        if isinstance(request, BuildModules):
            for index, packed in enumerate(request.cases):
                on_notification(ModuleBuilt([index], machine_code_sha256=codes.get(packed.variant, "")))
        found = ask(self, request, limit_s, on_notification)
        if isinstance(request, CheckCase):
            case = unpack(CATALOG, request.case)
            asked.append(case.variant.name)
            launches = tuple(map(RecordedLaunch.of, case.launches(132)))
            verdict = replace(found.verdict, launches=launches)
            found = replace(found, verdict=verdict, machine_code_sha256=codes.get(case.variant.name, ""))
        return found

    fake.start = lambda self: Environment(gpu="Fake GPU", sm_count=132)
    fake.ask, fake.times = answer, dict.fromkeys(codes, 1e-3)
    run_fake(tmp_path)
    path = tmp_path / "out" / FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["type"] == "result":
            line["source_sha256"] = "of another text"
            if line["variant"] == "vec4_unrolled":
                line["verdict"]["launches"][0]["args"][0] = "out"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    codes["vec4"] = "other"
    asked.clear()
    run_fake(tmp_path, resume=True)
    assert asked == ["grid_stride", "vec4", "vec4_unrolled"], "no machine code, other code, other arguments"


@pytest.mark.parametrize(("copied", "said"), [(4.05e12, ""), (3.6e12, "DRAM copy 3.60 TB/s (−10.0 %) at the start")])
def test_remembered_ceilings_are_looked_at_before_the_run(fake: Any, tmp_path: Path, copied: float, said: str) -> None:
    ask = fake.ask

    def answer(self: Any, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        if not isinstance(request, Probe):
            return ask(self, request, limit_s, on_notification)
        copy, fma = (unpack(CATALOG, packed) for packed in request.cases)
        return {copy.name: copy.problem.bytes() / copied, fma.name: fma.problem.flops() / 5e13}

    fake.ask, fake.times = answer, dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    run_fake(tmp_path, replace(PEAKS, cases=dict(PROBED)))
    run = read_run(tmp_path / "out")
    assert (
        run.ceilings is not None
        and run.ceilings.canary
        and [e.limit for e in run.ceilings.canary.checked] == list(PROBED)
    )
    assert run.ceilings.dram_bytes_per_s == 4e12 and len(run.warnings) == bool(said)
    assert all(said in w and "fp32" not in w and "opbench ceiling" in w for w in run.warnings)


def test_a_ceiling_check_that_dies_costs_no_run(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    results = run_fake(tmp_path, replace(PEAKS, cases={"dram_bytes_per_s": "copy/gone(n=4)"}))
    assert {r.status for r in results.values()} == {"right", "unsupported"}
    (warning,) = read_run(tmp_path / "out").warnings
    assert "could not be verified" in warning and "unknown variant 'gone'" in warning


def test_right_cases_are_measured_and_an_impossible_time_is_invalid(fake: Any, tmp_path: Path) -> None:
    least = (BYTES - (60 << 20)) / 4e12
    fake.times = {"scalar": 2 * least, "vec4": 1.01 * least, "grid_stride": 0.5 * least, "vec4_unrolled": least}
    results = run_fake(tmp_path, PEAKS)
    status = {name: r.status for name, r in results.items()}
    assert status == {
        "scalar": "right",
        "vec4": "right",
        "vec4_unrolled": "right",
        "grid_stride": "invalid",
        "torch": "unsupported",
    }
    assert "impossible" in results["grid_stride"].reason and "DRAM bandwidth" in results["grid_stride"].reason
    assert results["grid_stride"].measurement is not None, "the evidence is kept"
    assert results["scalar"].measurement and results["scalar"].measurement.median_s == pytest.approx(
        2 * least, rel=1e-3
    )
    assert results["torch"].reason == "no such library here"
    assert exit_code(results.values()) == 1
    assert read_run(tmp_path / "out").ceilings == PEAKS


def test_without_ceilings_there_is_no_floor(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-9)
    results = run_fake(tmp_path)
    assert {r.status for r in results.values()} == {"right", "unsupported"}
    assert read_run(tmp_path / "out").ceilings is None


def test_a_wrong_or_broken_case_is_never_measured(fake: Any, tmp_path: Path) -> None:
    fake.times = {"scalar": 1e-3, "grid_stride": 1e-3}
    fake.wrong, fake.broken = frozenset({"vec4"}), frozenset({"vec4_unrolled"})
    results = run_fake(tmp_path)
    assert (results["vec4"].status, results["vec4"].measurement) == ("wrong", None)
    assert (results["vec4_unrolled"].status, results["vec4_unrolled"].reason) == ("failed", "broken.cu:1: no")
    assert results["scalar"].measurement and results["grid_stride"].measurement


def test_a_case_that_dies_while_measured_is_failed_and_the_rest_measured_again(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.deadly = frozenset({"vec4", "grid_stride"})
    results = run_fake(tmp_path)
    status = {name: r.status for name, r in results.items() if name != "torch"}
    assert status == {"scalar": "right", "vec4": "failed", "grid_stride": "failed", "vec4_unrolled": "right"}
    assert results["vec4"].reason == "while measured: an illegal address"
    assert results["vec4"].measurement is None
    assert FakeWorker.asked.count(MeasureCases) == 3


def test_who_is_wrong_after_timing_has_no_time(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.wrong_after = frozenset({"vec4"})
    results = run_fake(tmp_path)
    assert (results["vec4"].status, results["vec4"].measurement) == ("wrong", None)
    assert results["vec4"].reason == "correct before timing, wrong after timing"
    assert results["vec4"].verdict == Verdict(False, results["vec4"].reason, run=RELAUNCH)
    assert {r.status for name, r in results.items() if name not in ("vec4", "torch")} == {"right"}


@pytest.mark.parametrize("processes", [1, 3])
def test_who_keeps_state_between_launches_is_invalid_without_a_time(fake: Any, tmp_path: Path, processes: int) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.refused = frozenset({"vec4"})
    results = run_fake(tmp_path, processes=processes)
    assert (results["vec4"].status, results["vec4"].measurement) == ("invalid", None)
    assert results["vec4"].reason == "keeps state between launches"
    assert results["scalar"].status == "right" and results["scalar"].measurement
    run = read_run(tmp_path / "out")
    (row,) = (r for r in rows(run) if r.variant == "vec4")
    assert row.status == "invalid" and row.time_s is None
    pages = [path for path in write_report(run, tmp_path / "page") if path.suffix == ".html"]
    assert "keeps state between launches" in pages[0].read_text()


def test_a_ranking_to_be_published_is_measured_in_processes_of_their_own(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.wrong_after = frozenset({"vec4"})
    stops: list[int] = []
    fake.stop = lambda self: stops.append(FakeWorker.asked.count(MeasureCases))
    results = run_fake(tmp_path, processes=3)
    assert stops[:2] == [1, 2] and FakeWorker.asked.count(MeasureCases) == 3, "a new process before each further round"
    found = results["scalar"].measurement
    assert found and set(found.processes) == {0, 1, 2} and len(found.processes) == len(found.samples_s)
    assert results["vec4"].status == "wrong", "checked after the last"
    assert read_run(tmp_path / "out").header.timing.processes == 3
    with refuses_setting("processes", 3, 1):
        run_fake(tmp_path, resume=True)


def test_a_run_is_completed_with_as_many_samples_as_it_was_begun_with(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    run_fake(tmp_path)
    suite = read_suite(tmp_path / "s.toml", CATALOG, "cuda")
    with refuses_setting("samples", suite.timing.max_samples, 1000):
        run_suite(
            replace(suite, timing=suite.timing.with_samples(1000)), RunSetup("cuda", tmp_path / "out", resume=True)
        )


def test_nothing_right_asks_for_no_measurement(fake: Any, tmp_path: Path) -> None:
    fake.wrong = frozenset({"scalar", "vec4", "grid_stride", "vec4_unrolled"})
    assert {r.status for r in run_fake(tmp_path).values()} == {"wrong", "unsupported"}
    assert MeasureCases not in FakeWorker.asked


def test_a_run_is_not_completed_on_another_gpu(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    run_fake(tmp_path)
    fake.gpu = "Other GPU"
    with refuses_setting("gpu", "Fake GPU", "Other GPU"):
        run_fake(tmp_path, resume=True)


def test_times_of_two_modes_do_not_share_a_run(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    found = run_fake(tmp_path)["vec4"].measurement
    assert found and found.mode == "cold" and found.kernel_s == pytest.approx(found.median_s - 0.8e-6)
    suite = read_suite(tmp_path / "s.toml", CATALOG, "cuda")
    hot = replace(suite, timing=replace(suite.timing, mode="hot"))
    with refuses_setting("mode", "cold", "hot"):
        run_suite(hot, RunSetup("cuda", tmp_path / "out", resume=True))
    run = run_suite(hot, RunSetup("cuda", tmp_path / "hot"))
    assert {r.measurement.mode for r in run.results if r.measurement} == {"hot"}
    assert run.header.timing.mode == "hot"


def test_ceilings_lost_with_a_killed_run_are_written_when_it_is_completed(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1.0)
    run_fake(tmp_path, PEAKS)
    path = tmp_path / "out" / FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    run_fake(tmp_path, PEAKS, resume=True)
    assert read_run(tmp_path / "out").ceilings == PEAKS
    run_fake(tmp_path, replace(PEAKS, dram_bytes_per_s=1.0), resume=True)
    assert read_run(tmp_path / "out").ceilings == PEAKS, "the first run's ceilings hold for all of it"


def test_a_backend_that_does_not_open_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Worker) -> Any:
        raise WorkerLost("the process running it died (signal SIGKILL)", value="signal SIGKILL")

    monkeypatch.setattr(Worker, "start", lost)
    with refuses("backend-not-opened", value="signal SIGKILL", error=EnvironmentFault):
        run_fake(tmp_path)
    assert not (tmp_path / "out" / FILE).read_bytes()


def test_a_compiler_that_dies_does_not_stop_the_run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1.0)
    answer = fake.ask

    def ask(self: Any, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        if isinstance(request, BuildModules):
            raise WorkerLost("the process running it died (signal SIGKILL)")
        return answer(self, request, limit_s, on_notification)

    monkeypatch.setattr(fake, "ask", ask)
    fake.wrong = frozenset({"torch"})  # nobody said that it is unsupported
    assert {r.status for n, r in run_fake(tmp_path).items() if n != "torch"} == {"right"}
