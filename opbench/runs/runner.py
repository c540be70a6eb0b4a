"""A run: build, check, measure, one problem at a time; every outcome is on disk before the next begins."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from opbench.backends.nvrtc.resources import Resources, describe
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.gpus import ceiling_check
from opbench.gpus.floor import floor_s
from opbench.gpus.products import product
from opbench.results.files import Run
from opbench.results.result import GOOD, Result, Status
from opbench.runs.gpu_code import GpuCode
from opbench.runs.header import RunFile, stands
from opbench.runs.options import RunOptions
from opbench.runs.protocol import (
    BUILD_LIMIT_S,
    Build,
    Built,
    Check,
    Measure,
    Open,
    PackedCase,
    Probe,
    Started,
    Told,
    Unsupported,
    iterate_problems,
    pack,
)
from opbench.runs.suite import Suite
from opbench.runs.worker import Worker, WorkerHung, WorkerLost
from opbench.session.checking import Checked
from opbench.timing.measurement import Measurement
from opbench.timing.processes import merge_processes
from opbench.timing.sampling import TimingOptions
from opbench.traffic.counts import Traffic


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes on."""

    phase: str
    """"build", "check", "measure" or "done"."""
    case: str
    done: int
    total: int


Tell = Callable[[Progress], None]


CASES_PER_WORKER = 64
"""A process of its own pays for its start, half a second, from about so many checks on."""


class _Stopped(Exception):
    """The run ends: what its workers still answer, their death above all, is no case's result."""


class _Enough(_Stopped):
    """A case is not right, and the first such was to end the run."""


@dataclass
class _State:
    """A run in progress; several threads share it where several workers run cases."""

    suite: Suite
    options: RunOptions
    workers: list[Worker]
    file: RunFile
    tell: Tell
    gpu_code: GpuCode
    """Of a GPU that is not here."""
    ceilings: dict[str, object] | None = None
    unsupported: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Compiler errors by case."""
    hung: dict[str, str] = field(default_factory=dict)
    """By variant, the case of it that did not end: its others are not tried."""
    packed: dict[str, PackedCase] = field(default_factory=dict)
    done: int = 0
    stopped: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def announce(self, phase: str, case: str) -> None:
        with self.lock:
            if self.stopped:
                raise _Stopped
            self.tell(Progress(phase, case, self.done, len(self.suite.cases)))

    def record(self, result: Result, traffic: Traffic | None = None) -> None:
        with self.lock:
            if self.stopped:
                raise _Stopped
            if traffic:
                self.file.write("traffic", {"case": result.case, **traffic.to_json()})
            self.file.result(result)
            self.done += 1
            self.announce("done", result.case)
            if self.options.exit_first and result.status not in GOOD:
                raise _Enough

    def pack(self, case: Case) -> PackedCase:
        """The case for a request, made once."""
        if case.name not in self.packed:
            self.packed[case.name] = pack(case)
        return self.packed[case.name]

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        with self.lock:
            self.stopped = True
        for worker in self.workers:
            worker.end()
        self.gpu_code.stop()


def run_suite(
    suite: Suite,
    options: RunOptions,
    tell: Tell = lambda progress: None,
    find_ceilings: Callable[[], dict[str, object]] | None = None,
) -> Run:
    """Run a suite's cases and return what is on disk afterwards.

    `find_ceilings` gives the device's measured limits, which are kept with the run; it is asked when the run's file is
    locked and fits. Raises EnvironmentFault when the backend cannot be opened or the disk is full, UsageError when
    --resume does not fit the run in the folder.
    """
    with RunFile(suite, options) as file:
        ceilings = find_ceilings() if find_ceilings else None
        # Grids and caches on the cpu are those of the named GPU, so that what is counted is what it would do.
        stands_for = product(options.gpu) if options.backend == "cpu" and options.gpu else None
        limits = stands_for.limits if stands_for else None
        names = ["worker", *(f"worker-{number}" for number in range(2, options.workers + 1)), "worker-nvrtc"]
        opening = Open(options.backend, options.roots, options.seed, limits, suite.traced_work)
        *workers, compiler = (Worker(opening, options.out / f"{name}.log") for name in names)
        gpu_code = GpuCode(compiler, options.compile_for if options.backend == "cpu" else "")
        state = _State(suite, options, workers, file, tell, gpu_code, ceilings)
        try:
            _run(state)
        except _Enough:
            pass  # without a line at its end, so that --resume completes it
        except KeyboardInterrupt:
            kept = f"what was measured is kept; complete it with --resume --out {shlex.quote(str(options.out))}"
            raise KeyboardInterrupt(kept if options.keep else "") from None
        finally:
            state.stop()
        return file.run()


def _run(state: _State) -> None:
    """All of a run's cases that no earlier result stands for."""
    began, suite, options, earlier = time.perf_counter(), state.suite, state.options, state.file.earlier
    environment = state.workers[0].open()
    if options.backend == "cpu" and options.compile_for:
        environment["resources"] = describe(options.compile_for)
    state.file.begin(environment)
    if state.ceilings and (earlier is None or earlier.ceilings is None):
        state.file.write("ceilings", _looked_at(state, state.ceilings))
    before = {result.case: result for result in earlier.results} if earlier else {}
    todo = [case for case in suite.cases if not stands(before.get(case.name), case)]
    state.done = len(suite.cases) - len(todo)
    state.gpu_code.start(todo, options.every_module)
    code, sm_count = _build(state, todo), int(str(environment.get("sm_count", 0)))
    todo = [c for c in todo if not stands(before.get(c.name), c, code.get(c.name, ""), sm_count)]
    state.done = len(suite.cases) - len(todo)
    _run_problems(state, todo)
    state.file.end(time.perf_counter() - began)


CANARY_LIMIT_S = 30.0


def _looked_at(state: _State, ceilings: dict[str, object]) -> dict[str, object]:
    """The ceilings with what a quick look at two of them found, where the run has a clock."""
    names = ceiling_check.probes(ceilings) if state.options.measure and state.options.backend == "cuda" else {}
    if not names:
        return ceilings
    state.announce("measure", "whether the ceilings still hold")
    try:
        cases = {limit: Catalog().case(name) for limit, name in names.items()}
        request = Probe([pack(c) for c in cases.values()], ceiling_check.TIMING)
        medians = state.workers[0].ask(request, CANARY_LIMIT_S)
    except OpbenchError as error:
        return {**ceilings, "canary": {"said": f"whether the remembered ceilings hold was not found out: {error}"}}
    work = {limit: c.problem.flops() if "flops" in limit else c.problem.bytes() for limit, c in cases.items()}
    seen = {limit: work[limit] / medians[case.name] for limit, case in cases.items()}
    return {**ceilings, "canary": ceiling_check.judge(ceilings, seen)}


def _build(state: _State, cases: Sequence[Case]) -> dict[str, str]:
    """Compile all modules, remember what does not compile or run here; checksums of cases' machine code, if any."""
    if not cases:
        return {}
    built, code = 0, {}

    def listen(told: Told) -> None:
        nonlocal built
        if isinstance(told, Unsupported):
            state.unsupported[cases[told.index].name] = told.reason
        elif isinstance(told, Built):
            names = [cases[index].name for index in told.indices]
            state.broken |= dict.fromkeys(names, told.error) if told.error else {}
            code.update(dict.fromkeys(names, told.machine_code_sha256))
            built += len(names)
            state.announce("build", f"{built} of {len(cases)}")

    state.announce("build", f"{len(cases)} cases")
    try:
        state.workers[0].ask(Build([state.pack(case) for case in cases]), BUILD_LIMIT_S, listen)
    except WorkerLost:
        # A compiler that dies or hangs costs its own case: each is compiled again, alone, when it is checked.
        state.announce("build", "stopped early; the rest is compiled case by case")
    return code


def _run_problems(state: _State, cases: Sequence[Case]) -> None:
    """Run the cases problem by problem, with as many workers as are worth their start."""
    groups = iterate_problems(cases)
    count = min(len(state.workers), -(-len(cases) // CASES_PER_WORKER))

    def work(worker: Worker) -> None:
        while not state.stopped:
            with state.lock:
                group = next(groups, None)
            if group is None:
                return
            _run_problem(state, worker, group)

    if count < 2:
        work(state.workers[0])
        return
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(work, worker) for worker in state.workers[:count]]
        try:
            for ended in as_completed(running):
                ended.result()
        except BaseException:
            state.stop()
            raise


def _run_problem(state: _State, worker: Worker, cases: Sequence[Case]) -> None:
    """Check every case of one problem, then measure the right ones together."""
    right: list[tuple[Case, Checked]] = []
    for case in cases:
        if case.name in state.unsupported:
            state.record(_result(state, case, "unsupported", state.unsupported[case.name]))
            continue
        if case.name in state.broken:
            state.record(_result(state, case, "failed", state.broken[case.name]))
            continue
        if earlier := state.hung.get(case.variant.id):
            state.record(_result(state, case, "failed", f"not tried, as {earlier} did not end"))
            continue
        state.announce("check", case.name)
        try:
            checked = worker.ask(Check(state.pack(case)), state.suite.time_limit_s)
        except EnvironmentFault:
            raise
        except OpbenchError as error:
            if isinstance(error, WorkerHung):
                state.hung[case.variant.id] = case.name
            state.record(_result(state, case, "failed", str(error)))
            continue
        if not checked.verdict.right:
            state.record(_result(state, case, "wrong", checked.verdict.reason, checked), checked.traffic)
        elif state.options.measure and state.options.backend == "cuda":
            right.append((case, checked))
        elif (compiled := _gpu_code(state, case)).refused:
            reason = f"right on the CPU, but NVRTC refuses it for {compiled.arch}: {compiled.refused}"
            state.record(_result(state, case, "failed", reason, checked), checked.traffic)
        else:
            state.record(_result(state, case, "right", "", checked), checked.traffic)
    if right:
        _measure(state, worker, right)


def _measure(state: _State, worker: Worker, right: list[tuple[Case, Checked]]) -> None:
    """Measure the contenders of one problem; one that kills the worker is recorded as failed and the rest go on."""
    contenders = {case.name: (case, checked) for case, checked in right}
    while contenders:
        running = ""

        def listen(told: Told) -> None:
            nonlocal running
            if isinstance(told, Started):
                running = told.case

        state.announce("measure", f"{len(contenders)} variants of {right[0][0].problem}")
        try:
            found = [case for case, _ in contenders.values()]
            measurements, fallen = _measure_in_processes(state, worker, found, listen)
        except EnvironmentFault:
            raise
        except OpbenchError as error:
            culprit = running or next(iter(contenders))
            case, checked = contenders.pop(culprit)
            state.record(_result(state, case, "failed", f"while measured: {error}", checked))
            continue
        for name, (case, checked) in contenders.items():
            if wrong := fallen.get(name, ""):
                verdict = replace(checked.verdict, right=False, reason=wrong)
                state.record(_result(state, case, "wrong", wrong, replace(checked, verdict=verdict)))
            else:
                state.record(_measured(state, case, checked, measurements[name]))
        return


def _measure_in_processes(
    state: _State, worker: Worker, cases: Sequence[Case], listen: Callable[[Told], None]
) -> tuple[dict[str, Measurement], dict[str, str]]:
    """Measurements by case and what went wrong after them; rounds of their own in as many processes as wanted.

    Each process has a context, buffers and an order of its own, so that what depends on these is in the interval.
    """
    parts: list[dict[str, Measurement]] = []
    fallen: dict[str, str] = {}
    for number in range(state.options.processes):
        if number:
            worker.stop()
        timing = replace(state.suite.timing, seed=state.suite.timing.seed + number)
        request = Measure([state.pack(case) for case in cases], timing, number + 1 == state.options.processes)
        found = worker.ask(request, state.suite.time_limit_s, listen)
        parts.append(found.measurements)
        fallen |= found.wrong
    return {case.name: merge_processes([part[case.name] for part in parts]) for case in cases}, fallen


def _measured(state: _State, case: Case, checked: Checked, measurement: Measurement) -> Result:
    floor, bound = floor_s(case, state.ceilings)
    if measurement.median_s < floor:
        reason = (
            f"impossible: {measurement.median_s:.3g} s is below the floor of {floor:.3g} s that the "
            f"{bound} allows; the kernel did not do the work, or the ceilings are stale (opbench ceiling)"
        )
        return _result(state, case, "invalid", reason, checked, measurement)
    return _result(state, case, "right", "", checked, measurement)


def _gpu_code(state: _State, case: Case) -> Resources:
    """What its kernels are on a GPU that is not here; waits until they are compiled."""
    if not state.gpu_code.knows(case):
        state.announce("compile", f"{case.name} {state.gpu_code.said}")
    return state.gpu_code.of(case)


def _result(
    state: _State,
    case: Case,
    status: Status,
    reason: str,
    checked: Checked | None = None,
    measurement: Measurement | None = None,
) -> Result:
    compiled = _gpu_code(state, case)
    return Result(
        case=case.name,
        operator=case.variant.operator,
        variant=case.variant.name,
        config=case.config,
        problem=str(case.problem),
        axes=case.problem.axes,
        precision=case.precision,
        unit=case.unit,
        backend=state.options.backend,
        status=status,
        reason=reason,
        verdict=checked.verdict if checked else None,
        measurement=measurement,
        resources=(checked.resources if checked else {}) or compiled.kernels,
        resources_missing=compiled.missing,
        compiled_for="" if compiled.refused or compiled.missing else compiled.arch,
        flops=case.problem.flops(),
        compulsory_bytes=case.problem.bytes(),
        builds_on=case.variant.builds_on,
        library=case.variant.is_library,
        memory_level=case.problem.bandwidth(),
        flops_are_a_floor=case.problem.flops_are_a_floor,
        title=case.variant.title,
        source_sha256=case.variant.source_sha256,
        machine_code_sha256=(checked.machine_code_sha256 if checked else "") or compiled.machine_code_sha256,
    )


__all__ = ["Progress", "RunOptions", "TimingOptions", "WorkerLost", "run_suite"]
