"""Run a suite: compile all cases, then run the problems on workers; each result is on disk before the next case."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial

from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.gpu.compile.resources import resources_origin
from opbench.gpu.limits import ceiling_check
from opbench.gpu.limits.ceilings import CeilingCheck, Peaks
from opbench.gpu.limits.products import product
from opbench.kernels.capability import parse_capability
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.results.files import Run
from opbench.results.header import RunDevice
from opbench.results.result import GOOD_STATUSES
from opbench.results.run_data import COMPILED_AHEAD
from opbench.running.compilers import AheadCompiler, BackgroundCompiler
from opbench.running.devices import ChosenGpu, common_environment, require_same_model
from opbench.running.dispatch import MAX_DEATHS, Dispatch
from opbench.running.header import RunFile, is_still_valid
from opbench.running.options import RunSetup
from opbench.running.problem import CaseFaults, Outcome, ProblemRun, RunSettings, WorkerSlot
from opbench.running.progress import OnProgress, Progress
from opbench.running.protocol import (
    BUILD_LIMIT_S,
    BuildModules,
    CaseUnsupported,
    FindUnsupported,
    ModuleBuilt,
    Notification,
    OpenBackend,
    Probe,
    iterate_problems,
    pack,
)
from opbench.running.suite import Suite
from opbench.running.worker import Worker, WorkerLost
from opbench.timing.sampling import TimingOptions

CASES_PER_WORKER = 64
"""An extra worker process takes 0.5 s to start, which pays off from about this many checks."""

CASE_S, LAUNCHES, SLOW_FLOPS_PER_S, SLOW_BYTES_PER_S, INPUT_BYTES_PER_S = 0.05, 20, 1e12, 1e12, 1e9
"""Estimates that only order problems by their time; observed on an H200 with naive kernels."""

FindCeilings = Callable[[Sequence[ChosenGpu]], list[Peaks]]


class RunEnded(Exception):
    """Ends a worker's thread after the run was stopped; what its worker then sends is ignored."""


class _FirstFailure(RunEnded):
    """Ends the run at the first case that is not right (--exit-first)."""


class RunResults:
    """Write the results of all workers to the run's file and count them; several threads may call the methods."""

    def __init__(self, suite: Suite, options: RunSetup, file: RunFile, on_progress: OnProgress) -> None:
        self.suite, self.options, self.file, self.on_progress = suite, options, file, on_progress
        self.ended = set[str]()
        """Names of cases that are done: an earlier result is valid, or this run's result is on disk."""
        self.stopped = False
        self.changed = threading.Condition(threading.RLock())

    def announce(self, phase: str, case: str) -> None:
        """Report the current phase and case; raise RunEnded if the run was stopped."""
        with self.changed:
            if self.stopped:
                raise RunEnded
            self.on_progress(Progress(phase, case, len(self.ended), len(self.suite.cases)))

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write results to disk."""
        with self.changed:
            for result, traffic in outcomes:
                if self.stopped:
                    raise RunEnded
                if traffic:
                    self.file.write("traffic", {"case": result.case, **traffic.to_json()})
                self.file.result(result)
                self.ended.add(result.case)
                self.announce("done", result.case)
                if self.options.exit_first and result.status not in GOOD_STATUSES:
                    raise _FirstFailure


@dataclass
class _RunState:
    """The state of a run in progress, shared by the threads of all workers."""

    suite: Suite
    options: RunSetup
    sink: RunResults
    slots: list[WorkerSlot]
    gpu_code: BackgroundCompiler
    """Compiles for a GPU that this machine lacks."""
    compiler: AheadCompiler
    """Compiles for the GPUs of this run."""
    case_faults: CaseFaults
    lost_devices: int = 0
    dispatch: Dispatch[Case] = field(default_factory=lambda: Dispatch(lambda case: case.name))

    def stop(self) -> None:
        """End all workers at once."""
        with self.sink.changed:
            self.sink.stopped = True
            self.sink.changed.notify_all()
        for slot in self.slots:
            slot.worker.end()
        self.gpu_code.stop()
        self.compiler.stop()


def run_suite(
    suite: Suite,
    options: RunSetup,
    on_progress: OnProgress = lambda progress: None,
    find_ceilings: FindCeilings | None = None,
) -> Run:
    """Run a suite's cases and return all results on disk.

    `find_ceilings` returns the measured peaks of each named device, or of the only device; the run records
    them. It is called after the run's file is locked. Raises EnvironmentFault if the backend cannot be opened
    or the disk is full, UsageError if --resume does not fit the run in the folder.
    """
    with RunFile(suite, options) as file:
        # Called before this run starts a worker, because the probes start their own workers.
        device_ceilings = find_ceilings(options.devices) if find_ceilings else []
        opening = backend_to_open(suite, options)
        slots = _worker_slots(opening, options)
        for slot, ceilings in zip(slots, device_ceilings, strict=False):
            slot.ceilings = ceilings
        compiler = Worker(opening, options.out / "worker-nvrtc.log")
        # Only a run that is kept reports machine code.
        gpu_code = BackgroundCompiler(compiler, options.compile_for if options.backend == "cpu" else "", options.keep)
        case_faults = CaseFaults()
        ahead = AheadCompiler(
            Worker(OpenBackend("", options.roots), options.out / "worker-compiler.log"), case_faults.compile_errors
        )
        results = RunResults(suite, options, file, on_progress)
        state = _RunState(suite, options, results, slots, gpu_code, ahead, case_faults)
        try:
            _run(state)
        except _FirstFailure:
            pass  # the file has no end line, so --resume can complete the run
        except KeyboardInterrupt:
            message = f"finished measurements are stored; complete with --resume --out {shlex.quote(str(options.out))}"
            raise KeyboardInterrupt(message if options.keep else "") from None
        finally:
            state.stop()
        return file.run()


def backend_to_open(suite: Suite, options: RunSetup) -> OpenBackend:
    """Return the request with which each worker of a run opens its backend."""
    # On the cpu, grids and caches are those of the named GPU, so its traffic is counted.
    modelled_gpu = product(options.gpu) if options.backend == "cpu" and options.gpu else None
    return OpenBackend(
        options.backend,
        options.roots,
        options.seed,
        modelled_gpu.limits if modelled_gpu else None,
        suite.traced_work,
        options.capability,
        options.secret,
        options.untrusted,
    )


def _worker_slots(opening: OpenBackend, options: RunSetup) -> list[WorkerSlot]:
    """Create a worker for each device, or `options.workers` workers on the cpu."""
    if not options.devices:
        names = ["worker", *(f"worker-{worker_number}" for worker_number in range(2, options.workers + 1))]
        return [WorkerSlot(Worker(opening, options.out / f"{name}.log")) for name in names]
    logs = [options.out / f"worker-gpu{device.index}.log" for device in options.devices]
    pairs = zip(options.devices, logs, strict=True)
    return [WorkerSlot(Worker(opening, log, device.environment, device.processors)) for device, log in pairs]


def _run(state: _RunState) -> None:
    """Run all cases that have no valid earlier result."""
    start_s, suite, options, file = time.perf_counter(), state.suite, state.options, state.sink.file
    environments = _open(state)
    environment = common_environment(environments)
    if options.backend == "cpu" and options.compile_for:
        environment = replace(environment, resources=resources_origin(options.compile_for))
    file.begin(environment)
    earlier_results = file.earlier_results()
    remaining = [case for case in suite.cases if not is_still_valid(earlier_results.get(case.name), case)]
    state.sink.ended = {case.name for case in suite.cases} - {case.name for case in remaining}
    state.gpu_code.start(remaining, options.every_module)
    _check_ceilings(state, environments)
    # Without a known capability, for example on the emulator, the workers compile before they check.
    capability = parse_capability(environment.compute_capability) if options.backend == "cuda" else None
    if capability:
        ordered_cases = [case for problem in _ordered_problems(state, remaining) for case in problem]
        threads = max(1, len(os.sched_getaffinity(0)) - max(1, len(options.devices)))
        state.compiler.start(ordered_cases, capability, threads)
        _find_unsupported(state, remaining)
        if any(case.name in earlier_results for case in remaining):
            state.compiler.wait(remaining, lambda progress: state.sink.announce("build", progress))
        machine_code = state.compiler.machine_code
    else:
        machine_code = _build(state, remaining)
    sm_count = environment.sm_count
    remaining = [
        c
        for c in remaining
        if not is_still_valid(earlier_results.get(c.name), c, machine_code.get(c.name, ""), sm_count)
    ]
    state.sink.ended = {case.name for case in suite.cases} - {case.name for case in remaining}
    _run_problems(state, remaining)
    spent_s = time.perf_counter() - start_s
    file.end(spent_s, _phases_s(state, spent_s))


def _phases_s(state: _RunState, spent_s: float) -> dict[str, float]:
    """Return the seconds of each phase of a run, summed over its workers, and the rest of their time as "other"."""
    workers = [slot.worker for slot in state.slots if slot.worker.phases_s]
    phases_s = {"build": state.compiler.waited_s}
    for worker in workers:
        for phase, seconds in worker.phases_s.items():
            phases_s[phase] = phases_s.get(phase, 0.0) + seconds
    rest_s = spent_s * len(workers) - sum(phases_s.values())
    phases_s["other"] = phases_s.get("other", 0.0) + max(0.0, rest_s)
    # Compiling goes on at the same time as the other phases, so it is no part of their sum.
    phases_s[COMPILED_AHEAD] = state.compiler.compiled_s
    return {phase: round(seconds, 3) for phase, seconds in phases_s.items() if seconds >= SHORTEST_PHASE_S}


SHORTEST_PHASE_S = 0.001
"""A phase below this time is not recorded."""


def _open(state: _RunState) -> list[Environment]:
    """Open each device and return its environment; raises EnvironmentFault if the devices differ."""
    devices, workers = state.options.devices, [slot.worker for slot in state.slots]
    if len(devices) < 2:
        return [workers[0].open()]
    state.sink.announce("build", f"opening {len(devices)} devices")
    with ThreadPoolExecutor(len(devices)) as pool:
        environments = list(pool.map(Worker.open, workers))
    for device, environment in zip(devices, environments, strict=True):
        if environment.uuid not in ("", device.uuid):
            raise EnvironmentFault(
                f"GPU {device.index} is {device.uuid}, but its worker sees {environment.uuid}; unset "
                "CUDA_VISIBLE_DEVICES, then repeat the command",
                kind="other-gpu",
                subject=device.index,
                value=environment.uuid,
                allowed=device.uuid,
            )
    require_same_model(
        {f"GPU {device.index}": environment for device, environment in zip(devices, environments, strict=True)}
    )
    return environments


CANARY_LIMIT_S = 30.0


def _check_ceilings(state: _RunState, environments: Sequence[Environment]) -> None:
    """Record each device's peaks in the run, after a quick measurement of two of them on a GPU."""
    file, devices, first_slot = state.sink.file, state.options.devices, state.slots[0]
    if len(devices) < 2 and not (file.earlier and file.earlier.devices):
        if first_slot.ceilings and (file.earlier is None or file.earlier.ceilings is None):
            file.write("ceilings", (_checked_ceilings(state, first_slot) or first_slot.ceilings).to_json())
        return
    with ThreadPoolExecutor(len(environments)) as pool:
        checked_peaks = list(pool.map(lambda slot: _checked_ceilings(state, slot), state.slots[: len(environments)]))
    for worker_number, (slot, environment) in enumerate(zip(state.slots, environments, strict=False)):
        index = devices[worker_number].index if devices else 0
        slot.device = environment.uuid or f"device {index}"
        file.device(RunDevice(environment, index, f"GPU {index}", slot.device, ceilings=checked_peaks[worker_number]))


def _checked_ceilings(state: _RunState, slot: WorkerSlot) -> Peaks | None:
    """Measure two of a device's peaks again and return the peaks with the outcome; unchanged without a GPU."""
    ceilings = slot.ceilings
    if ceilings is None or not (state.options.measure and state.options.backend == "cuda"):
        return ceilings
    names = ceiling_check.probe_cases(ceilings)
    if not names:
        return ceilings
    state.sink.announce("measure", "whether the stored peaks are still valid")
    try:
        cases = {limit: Catalog().case(name) for limit, name in names.items()}
        request = Probe([pack(c) for c in cases.values()], ceiling_check.PROBE_TIMING)
        medians = slot.worker.ask(request, CANARY_LIMIT_S)
    except OpbenchError as error:
        failed_check = CeilingCheck(text=f"the stored peaks could not be verified: {error}")
        return replace(ceilings, canary=failed_check)
    work_of_limit = {limit: c.problem.flops() if "flops" in limit else c.problem.bytes() for limit, c in cases.items()}
    rates = {limit: work_of_limit[limit] / medians[case.name] for limit, case in cases.items()}
    return replace(ceilings, canary=ceiling_check.check_ceilings(ceilings, rates))


def _build(state: _RunState, cases: Sequence[Case]) -> dict[str, str]:
    """Compile all modules and record cases that fail; return checksums of machine code by case name."""
    if not cases:
        return {}
    built_count, code = 0, {}

    def build(worker: Worker, worker_cases: Sequence[Case]) -> None:
        def on_notification(notification: Notification) -> None:
            nonlocal built_count
            if isinstance(notification, CaseUnsupported):
                state.case_faults.unsupported_reasons[worker_cases[notification.index].name] = notification.reason
            elif isinstance(notification, ModuleBuilt):
                names = [worker_cases[index].name for index in notification.indices]
                with state.sink.changed:
                    state.case_faults.compile_errors |= (
                        dict.fromkeys(names, notification.error) if notification.error else {}
                    )
                    code.update(dict.fromkeys(names, notification.machine_code_sha256))
                    built_count += len(names)
                    state.sink.announce("build", f"{built_count} of {len(cases)}")

        try:
            worker.ask(BuildModules([pack(case) for case in worker_cases]), BUILD_LIMIT_S, on_notification)
        except WorkerLost:
            # A compiler that dies or hangs must fail only its own case: each check compiles its case again, alone.
            state.sink.announce("build", "stopped early; the rest is compiled case by case")

    state.sink.announce("build", f"{len(cases)} cases")
    # With several devices each worker builds some variants, so that it also pays costs such as a library's start now.
    variants = list(dict.fromkeys(case.variant.id for case in cases))
    workers = [slot.worker for slot in state.slots[: max(1, len(state.options.devices))]]
    cases_of_worker = [
        [c for c in cases if variants.index(c.variant.id) % len(workers) == n] for n in range(len(workers))
    ]
    _in_parallel(state, [partial(build, *pair) for pair in zip(workers, cases_of_worker, strict=True) if pair[1]])
    return code


def _find_unsupported(state: _RunState, cases: Sequence[Case]) -> None:
    """Record the cases that the GPUs cannot run; each worker imports the modules of libraries for it."""

    def on_notification(notification: Notification) -> None:
        if isinstance(notification, CaseUnsupported):
            state.case_faults.unsupported_reasons[cases[notification.index].name] = notification.reason

    def find(worker: Worker) -> None:
        # A library that kills the worker must fail only its own cases, in their checks.
        with contextlib.suppress(WorkerLost):
            worker.ask(FindUnsupported([pack(case) for case in cases]), BUILD_LIMIT_S, on_notification)

    if cases:
        state.sink.announce("build", "looking for libraries")
        workers = [slot.worker for slot in state.slots[: max(1, len(state.options.devices))]]
        _in_parallel(state, [partial(find, worker) for worker in workers])


def _in_parallel(state: _RunState, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks in parallel; if one fails or the run is interrupted, end all workers."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task) for task in tasks]
        try:
            for ended in as_completed(running):
                ended.result()
        except BaseException:
            state.stop()
            raise


def slowest_first(problems: Sequence[Sequence[Case]]) -> list[Sequence[Case]]:
    """Sort problems by estimated time, longest first, so that no device starts a long one at the end of the run."""

    def estimated_s(cases: Sequence[Case]) -> float:
        """Estimate the time: overhead and some slow launches for each case, and the inputs once for each problem."""
        problem = cases[0].problem
        launches_s = LAUNCHES * (problem.flops() / SLOW_FLOPS_PER_S + problem.bytes() / SLOW_BYTES_PER_S)
        return len(cases) * (CASE_S + launches_s) + problem.bytes() / INPUT_BYTES_PER_S

    return sorted(problems, key=estimated_s, reverse=True)


def _run_problems(state: _RunState, cases: Sequence[Case]) -> None:
    """Run cases problem by problem, on as many workers as save more time than they take to start."""
    problems = _ordered_problems(state, cases)
    has_several_devices = len(state.options.devices) > 1
    worker_count = len(problems) if has_several_devices else -(-len(cases) // CASES_PER_WORKER)
    slots = state.slots[: max(1, min(len(state.slots), worker_count))]
    state.dispatch.crashes_allowed = MAX_DEATHS if has_several_devices else 1
    state.dispatch.add(problems)
    _in_parallel(state, [partial(_serve_slot, state, slot) for slot in slots])


def _ordered_problems(state: _RunState, cases: Sequence[Case]) -> list[Sequence[Case]]:
    """Return the cases by problem, in the order in which the problems run."""
    problems: list[Sequence[Case]] = list(iterate_problems(cases))
    return slowest_first(problems) if len(state.options.devices) > 1 else problems


def _serve_slot(state: _RunState, slot: WorkerSlot) -> None:
    """Run problems on one slot until none is left or its device fails."""
    sink, dispatch, name = state.sink, state.dispatch, str(slot.worker.log)
    settings = RunSettings(
        state.options.backend,
        state.options.measure,
        state.suite.time_limit_s,
        state.suite.timing,
        state.options.processes,
        state.options.relaunch,
        state.suite.prepared_cases,
    )
    dispatch_sink = _DispatchSink(sink, dispatch, name)
    problems = ProblemRun(settings, state.case_faults, dispatch_sink, state.gpu_code, state.compiler.paused)
    while True:
        with sink.changed:
            sink.changed.wait_for(lambda: sink.stopped or dispatch.is_done or dispatch.waiting)
            cases = None if sink.stopped else dispatch.assign(name)
        if cases is None:
            return
        try:
            if dispatch.crashes_allowed > 1 and not _can_open(state, slot, name):
                return
            state.compiler.wait(cases, lambda progress: sink.announce("build", progress))
            problems.run(slot, cases)
        except WorkerLost as lost:
            sink.announce("lost", f"{lost}; its problem is measured again")
            _end_of_problem(state, dispatch.return_problem, name)
        else:
            _end_of_problem(state, dispatch.finish, name)


def _can_open(state: _RunState, slot: WorkerSlot, name: str) -> bool:
    """Return whether a device still works; if not, other devices get its problem.

    Raises EnvironmentFault when the last device fails.
    """
    try:
        slot.worker.open()
    except EnvironmentFault as fault:
        with state.sink.changed:
            state.lost_devices += 1
            if state.lost_devices == len(state.options.devices):
                raise
        _end_of_problem(state, state.dispatch.return_problem, name)
        state.sink.announce("lost", f"a device: {fault}; the others go on")
        return False
    return True


def _end_of_problem(state: _RunState, handle_problem: Callable[[str], None], name: str) -> None:
    with state.sink.changed:
        handle_problem(name)
        state.sink.changed.notify_all()


class _DispatchSink:
    """Write the results of one worker and remove finished cases from its problem."""

    def __init__(self, sink: RunResults, dispatch: Dispatch[Case], name: str) -> None:
        self._sink, self._dispatch, self._name = sink, dispatch, name
        self.announce = sink.announce

    def started(self, case: str) -> None:
        """Do nothing, because the death of a local worker already names its case."""

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Write results to disk and remove their cases from the problem."""
        with self._sink.changed:
            self._sink.record(outcomes)
            self._dispatch.remove_judged(self._name, [result.case for result, _ in outcomes])

    def exceeds_crash_limit(self, case: str) -> bool:
        """Return whether so many workers died at this case that the case is at fault, not the machine."""
        with self._sink.changed:
            return self._dispatch.count_crash(case)


__all__ = ["OnProgress", "Progress", "RunSetup", "TimingOptions", "WorkerLost", "run_suite"]
