"""Modules that are compiled in another process while the GPU measures, and the time of each phase of a run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault, Location, Reason
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.results.files import FILE, Run, read_run
from opbench.results.showing import phases_text
from opbench.running import runner
from opbench.running.protocol import (
    BuildAhead,
    BuildModules,
    CaseUnsupported,
    CheckCase,
    FindUnsupported,
    MeasureCases,
    ModuleBuilt,
    Notification,
    OpenBackend,
    pack,
)
from opbench.running.runner import RunSetup, run_suite
from opbench.running.suite import Suite, read_suite
from opbench.running.worker import Worker, WorkerLost
from opbench.timing.phases import PhaseTimer
from support.builders.two_problems import own_variant
from support.checks.errors import refuses
from support.common import CATALOG, RELU
from support.fakes.worker import FakeWorker
from support.needs import needs_nvrtc

SIZES = (1 << 20, 1 << 21)


class CompilingWorker(FakeWorker):
    """Answer as a GPU of compute capability 9.0, or as a process that compiles for it."""

    times = dict.fromkeys(("scalar", "vec4"), 1e-3)
    asked_for: list[tuple[type, str]] = []
    """Each request with the backend of the worker that received it."""
    outcomes: dict[str, Reason] = {}
    """Compiler errors by variant."""
    ends_with: Exception | None = None
    """The error that ends the compiler after the first problem."""
    measured: threading.Event
    compiled_alone: threading.Event
    """Set when the second problem is compiled."""

    def start(self) -> Environment:
        return Environment(gpu="Fake GPU", compute_capability="9.0") if self.opening.backend else Environment()

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        self.asked_for.append((type(request), self.opening.backend))
        if isinstance(request, FindUnsupported):
            for index, packed in enumerate(request.cases):
                if packed.variant == "torch":
                    on_notification(CaseUnsupported(index, Reason("no such library here")))
            return None
        if isinstance(request, BuildAhead):
            self._build(request, on_notification)
            return None
        answer = super().ask(request, limit_s, on_notification)
        if isinstance(request, MeasureCases):
            self.measured.set()
        return answer

    def _build(self, request: BuildAhead, on_notification: Any) -> None:
        for index, packed in enumerate(request.cases):
            if packed.axes["n"] == SIZES[1] and not self.compiled_alone.is_set():
                if self.ends_with:
                    raise self.ends_with
                assert self.measured.wait(60), "the first problem waits for the modules of the second"
                self.compiled_alone.set()
            on_notification(ModuleBuilt([index], self.outcomes.get(packed.variant)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[CompilingWorker]:
    """A fresh fake in place of the worker."""
    members = {"asked_for": [], "measured": threading.Event(), "compiled_alone": threading.Event()}
    kind = type("Fresh", (CompilingWorker,), members)
    monkeypatch.setattr(runner, "Worker", kind)
    return kind


def two_problems(folder: Path) -> Suite:
    """Return a suite of three variants of relu on two sizes; PyTorch is missing."""
    problems = ", ".join(f"{{ n = {n} }}" for n in SIZES)
    (folder / "s.toml").write_text(
        '[timing]\nbudget_s = 0.02\n[[run]]\noperator = "relu"\nvariants = ["scalar", "vec4", "torch"]\n'
        f'configs = "default"\nproblems = [{problems}]\n'
    )
    return read_suite(folder / "s.toml", CATALOG, "cuda")


def run_two_problems(folder: Path, **options: Any) -> Run:
    """Run the suite on the fake GPU."""
    return run_suite(two_problems(folder), RunSetup("cuda", folder / "out", **options))


def statuses(run: Run) -> dict[tuple[str, int], str]:
    """Return the status of each case by variant and size."""
    return {(r.variant, int(r.axes["n"])): r.status for r in run.results}


def test_the_first_problem_is_measured_while_the_second_is_compiled(
    fake: type[CompilingWorker], tmp_path: Path
) -> None:
    run = run_two_problems(tmp_path)
    assert fake.compiled_alone.is_set() and run.finished
    assert {status for (name, _), status in statuses(run).items() if name != "torch"} == {"right"}
    assert {status for (name, _), status in statuses(run).items() if name == "torch"} == {"unsupported"}
    assert (BuildAhead, "") in fake.asked_for and (FindUnsupported, "cuda") in fake.asked_for
    assert BuildModules not in {request for request, _ in fake.asked_for}, "the GPU's worker does not compile"
    assert run.phases_s["compiled ahead"] > 0 and read_run(tmp_path / "out") == run


def test_a_module_that_does_not_compile_fails_its_own_cases(fake: type[CompilingWorker], tmp_path: Path) -> None:
    fake.outcomes = {"vec4": Reason("no", Location(Path("broken.cu"), 1))}
    run = run_two_problems(tmp_path)
    assert {r.failure for r in run.results if r.variant == "vec4"} == {"build"}
    assert {r.status for r in run.results if r.variant == "scalar"} == {"right"}


def test_a_compiler_that_dies_costs_no_case(fake: type[CompilingWorker], tmp_path: Path) -> None:
    fake.ends_with = WorkerLost("the process running it died (signal SIGKILL)")
    run = run_two_problems(tmp_path)
    assert {status for (name, _), status in statuses(run).items() if name != "torch"} == {"right"}
    assert [request for request, _ in fake.asked_for].count(CheckCase) == 4


def test_a_machine_that_cannot_compile_ends_the_run_and_keeps_its_results(
    fake: type[CompilingWorker], tmp_path: Path
) -> None:
    fake.ends_with = EnvironmentFault("the compiler's files cannot be written", kind="unwritable")
    with refuses("unwritable", error=EnvironmentFault):
        run_two_problems(tmp_path)
    assert not read_run(tmp_path / "out").finished
    fake.ends_with = None
    assert run_two_problems(tmp_path, resume=True).finished


def test_an_interrupted_wait_ends_the_run(
    fake: type[CompilingWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(fake):  # type: ignore[misc, valid-type]
        ended = threading.Event()

        def _build(self, request: BuildAhead, on_notification: Any) -> None:
            assert self.ended.wait(60)
            raise WorkerLost("the run has ended")

        def end(self) -> None:
            self.ended.set()

    monkeypatch.setattr(runner, "Worker", Waiting)

    def on_progress(progress: runner.Progress) -> None:
        if progress.phase == "build" and progress.case == "0 of 6":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(two_problems(tmp_path), RunSetup("cuda", tmp_path / "out"), on_progress)
    assert Waiting.ended.is_set()


def test_a_measurement_pauses_the_compiler(
    fake: type[CompilingWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Paused(fake):  # type: ignore[misc, valid-type]
        def pause(self) -> None:
            events.append("paused" if not self.opening.backend else "wrong process")

        def resume(self) -> None:
            events.append("resumed")

        def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
            if isinstance(request, MeasureCases):
                events.append("measured")
            return super().ask(request, limit_s, on_notification)

    monkeypatch.setattr(runner, "Worker", Paused)
    run_two_problems(tmp_path)
    assert events == ["paused", "measured", "resumed"] * 2


def test_a_paused_process_uses_no_time_and_goes_on(tmp_path: Path) -> None:
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    worker.pause()  # nothing to pause yet
    worker.open()
    answers: list[object] = []
    request = CheckCase(pack(case_named("relu/scalar(n=100)")))
    try:
        worker.pause()
        thread = threading.Thread(target=lambda: answers.append(worker.ask(request, 120)))
        thread.start()
        thread.join(0.5)
        assert not answers
        worker.resume()
        thread.join(120)
        assert len(answers) == 1
        worker.pause()
    finally:
        worker.end()  # kills a paused process, too


@needs_nvrtc
def test_a_process_without_a_gpu_compiles_for_one(tmp_path: Path) -> None:
    own_variant(tmp_path, RELU, "good")
    own_variant(tmp_path, RELU.replace("const int i", "no_type i"), "broken")
    roots = (tmp_path / "mine",)
    names = [
        "relu/good(n=1000)",
        "relu/broken(n=1000)",
        "relu/torch(n=1000)",
        "mma/wgmma_shared_bf16(tiles=2,rounds=5)",
    ]
    cases: list[Case] = [case_named(name, roots) for name in names]
    built: dict[int, ModuleBuilt] = {}

    def on_notification(notification: Notification) -> None:
        assert isinstance(notification, ModuleBuilt)
        built.update(dict.fromkeys(notification.indices, notification))

    worker = Worker(OpenBackend("", roots), tmp_path / "worker.log")
    try:
        worker.ask(BuildAhead([pack(case) for case in cases], (8, 0), 2), 120, on_notification)
    finally:
        worker.stop()
    good, broken, library, other_gpu = (built[index] for index in range(4))
    assert good.machine_code_sha256 and not good.error
    assert broken.error and "broken.cu" in str(broken.error)
    assert not library.machine_code_sha256 and not other_gpu.machine_code_sha256, "nothing to compile"


# Phases -----------------------------------------------------------------------------------------------------------


def test_an_inner_phase_takes_its_time_from_the_outer_one() -> None:
    now = iter([0.0, 1.0, 4.0, 6.0, 6.0, 10.0])
    timer = PhaseTimer(lambda: next(now))
    with timer.phase("check"), timer.phase("references"):
        pass
    # check: 0 to 1 and 4 to 6; references: 1 to 4
    assert timer.take() == {"check": 3.0, "references": 3.0}
    assert timer.take() == {}


def test_another_thread_adds_no_time() -> None:
    timer = PhaseTimer()

    def work() -> None:
        with timer.phase("inputs"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert timer.take() == {}


def test_a_worker_reports_the_phases_of_its_requests(tmp_path: Path) -> None:
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    try:
        worker.ask(CheckCase(pack(case_named("relu/scalar(n=100)"))), 120)
    finally:
        worker.stop()
    phases = {"open", "check", "inputs", "references", "loading", "memory checks", "comparisons"}
    assert phases <= set(worker.phases_s)
    assert all(seconds >= 0 for seconds in worker.phases_s.values())


def test_phases_of_all_parts_of_a_run_are_added(tmp_path: Path) -> None:
    ends = [{"wall_s": 9.0, "phases_s": {"check": 2.0, "samples": 4.0, "compiled ahead": 5.0}}, {"wall_s": 1.0}]
    ends += [{"wall_s": 2.0, "phases_s": {"check": 1.0}}]
    lines = [{"type": "run", "format": 1}, *({"type": "end", **end} for end in ends)]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(tmp_path)
    assert run.phases_s == {"check": 3.0, "samples": 4.0, "compiled ahead": 5.0}
    names = [part.rpartition(" ")[0].rpartition(" ")[0] for part in phases_text(run).split(", ")]
    assert names == ["samples", "check", "compiled ahead"], "the longest first"
