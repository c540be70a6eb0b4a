"""Knock-out experiments: what is timed and what is not, with a worker and a driver that are no GPU's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opbench.backend.environment import Environment
from opbench.checking import experiment as timing_experiment
from opbench.checking.checking import Session
from opbench.checking.experiment import KnockOutTimes, time_cubins
from opbench.cli.explain import explain_command
from opbench.errors import EnvironmentFault, LaunchError, UsageError
from opbench.gpu.compile.knockout import KnockOut
from opbench.gpu.compile.knockout_classes import ADDRESS_ARITHMETIC, GLOBAL_LOADS, GLOBAL_STORES
from opbench.gpu.driver import CudaBackend
from opbench.gpu.driver.driver import Driver
from opbench.kernels.folders import case_named
from opbench.report.experiment import experiment_lines
from opbench.results.experiment import (
    ORIGINAL,
    ClassCost,
    Experiment,
    KeptLine,
    MachineCodeChange,
    pair_cost,
)
from opbench.results.files import RunWriter, read_content, read_lines, read_run, run_file
from opbench.running import experiment as running_experiment
from opbench.running.experiment import AssembledKnockOuts, KnockOutTimer, run_experiments
from opbench.running.protocol import CaseStarted, OpenBackend, TimeCubins
from opbench.running.worker import Worker, WorkerHung
from opbench.timing.clock import Launch, Sample
from opbench.timing.sampling import TimingOptions, measure
from support.checks.errors import refuses
from support.common import CATALOG, ROOT, read_experiments
from support.fakes.quiet_clock import QuietClock
from support.needs import needs_nvrtc

TIMES = {
    ORIGINAL: 10e-6,
    "global-loads": 4e-6,
    "global-stores": 9e-6,
    "barriers": 10e-6,
    "global-loads+global-stores": 1e-6,
    ADDRESS_ARITHMETIC: 8e-6,
    f"global-loads+{ADDRESS_ARITHMETIC}": 3e-6,
}
"""Seconds of each knock-out on the fake GPU."""


class TimedByTable(QuietClock):
    """Times from a table; the noise is 0.1 %."""

    def __init__(self) -> None:
        self.key, self.number = "", 0

    def sample(self, launch: Launch, hold_stream: bool = True) -> Sample:
        """The time of the launch whose turn it is."""
        self.number += 1
        return Sample(TIMES[self.key] * (1 + 1e-3 * (self.number % 3)))


class FakeWorker(Worker):
    """A worker on a GPU where some knock-outs hang, fault or fault only while timed."""

    def __init__(self, hang: str = "", fault: str = "", late: str = "", wrong: str = "") -> None:
        super().__init__(OpenBackend("cuda"), Path("unused.log"))
        self.hang, self.fault, self.late, self.wrong = hang, fault, late, wrong
        self.judged: list[str] = []
        self.limits: list[float] = []
        self.stops = 0

    def start(self) -> Environment:
        """Nothing to start."""
        return Environment(gpu="Fake GPU", compute_capability="9.0", sm_count=132)

    def stop(self) -> None:
        """Count the processes that are replaced."""
        self.stops += 1

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        """Answer a probe or a timing."""
        assert isinstance(request, TimeCubins)
        self.limits.append(limit_s)
        if self.hang in request.cubins:
            raise WorkerHung("stopped after 1 s", value=limit_s)
        if self.fault in request.cubins:
            raise LaunchError("an illegal address", kind="launch-failed")
        self.judged += [*request.cubins] if request.judged else []
        if self.wrong in request.cubins and request.judged:
            raise LaunchError("wrong in timed sample 1", kind="wrong-results")
        if request.probe:
            return KnockOutTimes({})
        clock = TimedByTable()

        def on_start(key: str) -> None:
            clock.key = key
            on_notification(CaseStarted(key))
            if key == self.late:
                raise LaunchError("an illegal address", kind="launch-failed")

        ticks = iter(range(10**9))
        launches: Mapping[str, Callable[[], None]] = {name: lambda: None for name in request.cubins}
        return KnockOutTimes(
            measure(clock, launches, request.timing, on_start=on_start, now_s=lambda: next(ticks) * 1e-3)
        )


def assembled(monkeypatch: pytest.MonkeyPatch, *names: str) -> AssembledKnockOuts:
    """A case with these knock-outs, whose cubins are only names."""
    costs = {name: ClassCost(name, 3, {"12": 2, "tile.cuh:7": 1}) for name in names}
    cubins = {name: Path(f"{name}.cubin") for name in (ORIGINAL, *names)}
    monkeypatch.setattr(running_experiment, "_assemble_without", lambda found, pair: Path("+".join(pair)))
    knockout = KnockOut(".version 8.0\n.target sm_80\n.address_size 64\n", [])
    return AssembledKnockOuts(case_named("relu/scalar(n=2000)"), knockout, "sm_90", costs, cubins, "ptxas 13.0", True)


def run(monkeypatch: pytest.MonkeyPatch, worker: FakeWorker, *names: str, limit_s: float = 1.0) -> Experiment:
    """The experiment of a case with these knock-outs."""
    bench = KnockOutTimer(CATALOG, Path("unused"), TimingOptions(warmup_s=0, max_samples=20), limit_s, worker)
    return bench.run(assembled(monkeypatch, *names))


def test_the_time_that_each_class_exposes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, FakeWorker(), "global-loads", "global-stores")
    loads, stores = found.classes
    assert found.source == "measured" and found.gpu == "Fake GPU" and found.total_s == pytest.approx(10e-6, rel=2e-3)
    assert loads.exposed_s == pytest.approx(6e-6, rel=5e-3) and stores.exposed_s == pytest.approx(1e-6, rel=3e-2)
    assert loads.low_s is not None and loads.high_s is not None and loads.low_s < 6e-6 < loads.high_s * 1.01
    (pair,) = found.pairs
    assert set(pair.names) == {"global-loads", "global-stores"}
    assert pair.exposed_s == pytest.approx(9e-6, rel=5e-3) and pair.overlap_s == pytest.approx(2e-6, rel=3e-2)
    assert 0 < pair.low_s < pair.overlap_s < pair.high_s, "they hide behind each other"
    assert json.loads(json.dumps(found.to_json()))["classes"][0]["exposed_s"] == loads.exposed_s


@pytest.mark.parametrize(("how", "reason"), [("hang", "hangs"), ("fault", "faults"), ("late", "faults")])
def test_a_knock_out_that_does_not_end_costs_its_own_figure_only(
    monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    worker = FakeWorker(**{how: "barriers"})
    found = run(monkeypatch, worker, "global-loads", "barriers")
    loads, barriers = found.classes
    assert barriers.reason == reason and barriers.exposed_s is None and barriers.detail
    assert loads.exposed_s == pytest.approx(6e-6, rel=5e-3) and not loads.reason
    assert worker.stops == 1, "the process is a new one"
    assert 1.0 in worker.limits, "a probe ends at the limit"


def test_only_stepped_addresses_must_compute_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker()
    run(monkeypatch, worker, "global-loads", ADDRESS_ARITHMETIC)
    assert worker.judged == [ADDRESS_ARITHMETIC]
    loads, addresses = run(
        monkeypatch, FakeWorker(wrong=ADDRESS_ARITHMETIC), "global-loads", ADDRESS_ARITHMETIC
    ).classes
    assert addresses.reason == "wrong-results" and addresses.exposed_s is None and loads.exposed_s


def test_stepped_addresses_that_take_longer_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMES, ADDRESS_ARITHMETIC, 12e-6)
    monkeypatch.setitem(TIMES, "barriers", 12e-6)
    barriers, addresses = run(monkeypatch, FakeWorker(), "barriers", ADDRESS_ARITHMETIC).classes
    assert addresses.reason == "slower" and addresses.exposed_s is None and "12.0 µs" in addresses.detail
    assert barriers.exposed_s == pytest.approx(-2e-6, rel=2e-2) and not barriers.reason


def test_a_kernel_that_faults_as_it_is_has_no_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("launch-failed", error=LaunchError):
        run(monkeypatch, FakeWorker(fault=ORIGINAL), "global-loads")


def test_overlap_is_less_than_nothing_where_two_classes_share_a_wait() -> None:
    times = {ORIGINAL: [10.0] * 8, "one": [6.0] * 8, "two": [6.0] * 8, "one+two": [5.0] * 8}
    pair = pair_cost(("one", "two"), times)
    assert (pair.exposed_s, pair.overlap_s, pair.low_s, pair.high_s) == (5.0, -3.0, -3.0, -3.0)


@pytest.mark.parametrize(
    ("before", "after", "ptx", "removed", "rolled"),
    [(29, 5, 5, False, True), (128, 64, 128, True, False), (128, 120, 128, False, False), (5, 8, 5, False, False)],
)
def test_fewer_instructions_are_removed_or_only_copied_less(
    before: int, after: int, ptx: int, removed: bool, rolled: bool
) -> None:
    change = MachineCodeChange("fp32", before, after, False, ptx)
    assert (change.removed, change.rolled) == (removed, rolled)
    cost = ClassCost("shared", 4, changes=(change,))
    assert cost.upper_bound == (("fp32",) if removed else ()) and cost.lower_bound == rolled
    assert not replace(cost, changes=(replace(change, intended=True),)).upper_bound


# The text ---------------------------------------------------------------------------------------------------------


def test_the_table_marks_bounds_and_what_is_not_measurable() -> None:
    classes = (
        ClassCost("global-loads", 4, {"9": 4}, (KeptLine("5", 1, "feeds-address"),),
                  (MachineCodeChange("fp32", 100, 50, False, 100),), (32, 20),
                  without_s=4e-6, exposed_s=6e-6, low_s=5.9e-6, high_s=6.1e-6),
        ClassCost("barriers", 0, {}, (KeptLine("7", 2, "mbarrier"),), reason="mbarrier"),
        ClassCost("atomics", 1, {"8": 1}, reason="hangs", detail="stopped after 20 s"),
    )  # fmt: skip
    found = Experiment("a case", "sm_90", "ptxas 13.0", True, classes, (), "measured", "H100", 10e-6, 9.9e-6, 10.1e-6)
    text = "\n".join(experiment_lines(found))
    assert re.search(r"global loads +4\.00 µs +≤ 6\.00 µs +5\.90 µs to 6\.10 µs +60 % +4  9 \(4\)", text)
    assert text.count("not measurable") == 3 and "stopped after 20 s" in text and "an upper bound" in text
    assert "1 of 5 instructions stay" in text and "20 registers a thread" in text


# Without a GPU ----------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_without_a_gpu_the_classes_are_counted_and_the_error_says_what_is_missing() -> None:
    shown: list[Experiment] = []
    with refuses("needs-gpu", "--experiment", value="no GPU", error=EnvironmentFault):
        run_experiments(["relu/scalar", "transpose/shared"], "", "h100", CATALOG, shown.append, lambda text: None)
    relu, transpose = shown
    assert [cost.name for cost in relu.classes] == [GLOBAL_LOADS, GLOBAL_STORES, ADDRESS_ARITHMETIC]
    assert relu.source == "counted" and relu.total_s is None and all(cost.instructions for cost in relu.classes[:2])
    assert relu.classes[2].reason == "outside-loops" and not relu.classes[2].instructions
    lines = {cost.name: cost.lines for cost in transpose.classes}
    source = (ROOT / "variants/transpose/shared.cu").read_text().splitlines()
    assert all("__syncthreads" in source[int(line) - 1] for line in lines["barriers"])
    assert lines["bank-conflicts"].keys() < lines["shared"].keys(), "only the accesses that conflict"


@needs_nvrtc
def test_a_missing_assembler_leaves_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(arch: str) -> None:
        raise EnvironmentFault("no ptxas")

    monkeypatch.setattr(running_experiment, "assembler", missing)
    shown: list[Experiment] = []
    with refuses("missing-extra", "--experiment", error=EnvironmentFault):
        run_experiments(["relu/scalar"], "", "h100", CATALOG, shown.append, lambda text: None)
    assert shown[0].classes[0].instructions and not shown[0].assembler


def test_other_cases_are_timed_after_one_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running_experiment, "resolve_name", lambda name: "cuda")
    monkeypatch.setattr(running_experiment, "conflict_lines", lambda *args: None)
    monkeypatch.setattr(running_experiment, "Worker", lambda *args: FakeWorker())

    def assemble(case: Any, *rest: Any) -> AssembledKnockOuts:
        if case.variant.name == "scalar":
            raise UsageError("no", kind="not-right")
        return replace(assembled(monkeypatch, "global-loads"), case=case)

    monkeypatch.setattr(running_experiment, "assemble_knockouts", assemble)
    shown: list[Experiment] = []
    with refuses("not-right"):
        run_experiments(["relu/scalar", "transpose/shared"], "", "h100", CATALOG, shown.append, lambda text: None)
    assert [one.case.partition("[")[0] for one in shown] == ["transpose/shared"] and shown[0].total_s


@needs_nvrtc
def test_the_command_prints_what_it_counts(tmp_path: Path) -> None:
    done = CliRunner().invoke(explain_command, ["relu/scalar", "--experiment", "--json", "--gpu", "h100"])
    assert isinstance(done.exception, EnvironmentFault)
    (tmp_path / "counted.jsonl").write_text(done.stdout)
    (found,) = read_experiments(tmp_path / "counted.jsonl")
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_json())) and found.arch == "sm_90"


@pytest.mark.parametrize(("source", "stored"), [("measured", True), ("counted", False)])
def test_experiments_are_stored_in_the_folder_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, stored: bool
) -> None:
    found = replace(run(monkeypatch, FakeWorker(), "global-loads", "global-stores"), source=source)
    monkeypatch.setattr(
        running_experiment, "run_experiments", lambda names, pattern, gpu, catalog, show, note: show(found)
    )
    done = CliRunner().invoke(explain_command, ["relu/scalar", "--experiment", "--run", str(tmp_path)])
    assert done.exit_code == 0 and "global loads" in done.stdout
    lines = [line for _, line in read_lines(tmp_path / "results.jsonl")] if stored else []
    assert [line["type"] for line in lines] == ["experiment"] * stored
    assert stored or not (tmp_path / "results.jsonl").exists()


# On a driver of host memory ---------------------------------------------------------------------------------------


@needs_nvrtc
def test_knock_outs_are_launched_on_the_inputs_of_the_case(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Driver, "has", lambda self, name: False)
    case = case_named("relu/scalar(n=2000)")
    cubin = backend.compile(case.request())
    checked: list[str] = []
    monkeypatch.setattr(timing_experiment, "_require_right", lambda session, ready, when: checked.append(when))
    started: list[str] = []
    options = TimingOptions(warmup_s=0, max_samples=10)
    found = time_cubins(
        Session(backend), case, {ORIGINAL: cubin, "one": cubin}, options, backend.clock(), started.append
    )
    assert found.measurements.keys() == {ORIGINAL, "one"} == {*started} - {""}
    assert found.measurements["one"].mode == "cold" and checked == ["before", "after"]
    assert not time_cubins(Session(backend), case, {"one": cubin}, options, None).measurements
    assert checked == ["before", "after"], "a probe of a knock-out does not judge the case again"


@needs_nvrtc
def test_wrong_results_of_a_judged_knock_out_are_refused(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "has", lambda self, name: False)
    case = case_named("relu/scalar(n=2000)")  # the fake driver does not know this kernel, so that it writes nothing
    cubins = {"address-arithmetic": backend.compile(case.request())}
    with refuses("wrong-results", case.name, value="address-arithmetic", error=LaunchError):
        time_cubins(Session(backend), case, cubins, TimingOptions(), None, judged=True)


@needs_nvrtc
def test_a_wrong_case_has_no_experiment(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "has", lambda self, name: False)
    case = case_named("relu/scalar(n=2000)")  # the fake driver does not know this kernel, so that it writes nothing
    with refuses("not-right", case.name):
        time_cubins(Session(backend), case, {ORIGINAL: backend.compile(case.request())}, TimingOptions(), None)


def test_the_cpu_backend_has_no_clock() -> None:
    from opbench.emulator import CpuBackend

    case = case_named("relu/scalar(n=20)")
    with refuses("needs-gpu", "--experiment", value="cpu", allowed="cuda", error=UsageError):
        time_cubins(Session(CpuBackend()), case, {}, TimingOptions(), None)


def test_a_run_keeps_its_results_next_to_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "reports/h100/triton"
    (tmp_path / "results.jsonl").write_bytes(read_content(run_file(source)))
    before = read_run(tmp_path)
    writer = RunWriter(tmp_path)
    writer.write("experiment", run(monkeypatch, FakeWorker(), "global-loads", "global-stores").to_json())
    writer.close()
    assert read_run(tmp_path).results == before.results
