"""A run: build, then problem after problem on each worker; every outcome is on disk before the next begins."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial

from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.gpu.compile.resources import describe
from opbench.gpu.limits import ceiling_check
from opbench.gpu.limits.ceilings import CeilingCheck, Ceilings
from opbench.gpu.limits.products import product
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.results.files import Run
from opbench.results.header import RunDevice
from opbench.results.result import GOOD
from opbench.running.devices import ChosenGpu, common_environment, require_alike
from opbench.running.dispatch import DEATHS, Dispatch
from opbench.running.gpu_code import GpuCode
from opbench.running.header import RunFile, stands
from opbench.running.options import RunSetup
from opbench.running.problem import CaseFaults, Ended, ProblemRun, Station, Terms
from opbench.running.progress import Progress, Tell
from opbench.running.protocol import BUILD_LIMIT_S, Build, Built, Open, Probe, Told, Unsupported, iterate_problems, pack
from opbench.running.suite import Suite
from opbench.running.worker import Worker, WorkerLost
from opbench.timing.sampling import TimingOptions

CASES_PER_WORKER = 64
"""A process of its own pays for its start, half a second, from about so many checks on."""

CASE_S, LAUNCHES, SLOW_FLOPS_PER_S, SLOW_BYTES_PER_S, INPUT_BYTES_PER_S = 0.05, 20, 1e12, 1e12, 1e9
"""What a problem's time is guessed by, for its turn only: as seen on an H200's host, and of naive kernels there."""

FindCeilings = Callable[[Sequence[ChosenGpu]], list[Ceilings]]


class RunEnded(Exception):
    """The run ends: what its workers still answer, their death above all, is no case's result."""


class _Enough(RunEnded):
    """A case is not right, and the first such was to end the run."""


class RunDesk:
    """Where outcomes of a run come in: one file, one count, whoever and however many bring them."""

    def __init__(self, suite: Suite, options: RunSetup, file: RunFile, tell: Tell) -> None:
        self.suite, self.options, self.file, self.tell = suite, options, file, tell
        self.ended = set[str]()
        """Cases that need no work: an earlier result stands, or this run's is on disk."""
        self.stopped = False
        self.changed = threading.Condition(threading.RLock())

    def announce(self, phase: str, case: str) -> None:
        """Say what is done now; raises where the run has ended."""
        with self.changed:
            if self.stopped:
                raise RunEnded
            self.tell(Progress(phase, case, len(self.ended), len(self.suite.cases)))

    def record(self, outcomes: Sequence[Ended]) -> None:
        """Put outcomes on disk."""
        with self.changed:
            for result, traffic in outcomes:
                if self.stopped:
                    raise RunEnded
                if traffic:
                    self.file.write("traffic", {"case": result.case, **traffic.to_json()})
                self.file.result(result)
                self.ended.add(result.case)
                self.announce("done", result.case)
                if self.options.exit_first and result.status not in GOOD:
                    raise _Enough


@dataclass
class _State:
    """A run in progress; several threads share it where several workers run cases."""

    suite: Suite
    options: RunSetup
    desk: RunDesk
    stations: list[Station]
    gpu_code: GpuCode
    """Of a GPU that is not here."""
    find_ceilings: FindCeilings | None
    known: CaseFaults = field(default_factory=CaseFaults)
    lost_devices: int = 0
    dispatch: Dispatch[Case] = field(default_factory=lambda: Dispatch(lambda case: case.name))

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        with self.desk.changed:
            self.desk.stopped = True
            self.desk.changed.notify_all()
        for station in self.stations:
            station.worker.end()
        self.gpu_code.stop()


def run_suite(
    suite: Suite,
    options: RunSetup,
    tell: Tell = lambda progress: None,
    find_ceilings: FindCeilings | None = None,
) -> Run:
    """Run a suite's cases and return what is on disk afterwards.

    `find_ceilings` gives the measured limits of each device, or of the one there is where none is named, which are kept
    with the run; it is asked when the run's file is locked and fits. Raises EnvironmentFault when the backend cannot be
    opened or the disk is full, UsageError when --resume does not fit the run in the folder.
    """
    with RunFile(suite, options) as file:
        # Asked before any worker of this run is there: the probes have workers of their own.
        found = find_ceilings(options.devices) if find_ceilings else []
        # Grids and caches on the cpu are those of the named GPU, so that what is counted is what it would do.
        stands_for = product(options.gpu) if options.backend == "cpu" and options.gpu else None
        limits = stands_for.limits if stands_for else None
        opening = Open(options.backend, options.roots, options.seed, limits, suite.traced_work, options.capability)
        stations = _stations(opening, options)
        for station, ceilings in zip(stations, found, strict=False):
            station.ceilings = ceilings
        compiler = Worker(opening, options.out / "worker-nvrtc.log")
        gpu_code = GpuCode(compiler, options.compile_for if options.backend == "cpu" else "")
        state = _State(suite, options, RunDesk(suite, options, file, tell), stations, gpu_code, find_ceilings)
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


def _stations(opening: Open, options: RunSetup) -> list[Station]:
    """A worker for each device, or on the cpu as many as there may be."""
    if not options.devices:
        names = ["worker", *(f"worker-{number}" for number in range(2, options.workers + 1))]
        return [Station(Worker(opening, options.out / f"{name}.log")) for name in names]
    logs = [options.out / f"worker-gpu{device.index}.log" for device in options.devices]
    pairs = zip(options.devices, logs, strict=True)
    return [Station(Worker(opening, log, device.environment)) for device, log in pairs]


def _run(state: _State) -> None:
    """All of a run's cases that no earlier result stands for."""
    began, suite, options, file = time.perf_counter(), state.suite, state.options, state.desk.file
    environments = _open(state)
    environment = common_environment(environments)
    if options.backend == "cpu" and options.compile_for:
        environment = replace(environment, resources=describe(options.compile_for))
    file.begin(environment)
    _look_at_ceilings(state, environments)
    before = {result.case: result for result in file.earlier.results} if file.earlier else {}
    todo = [case for case in suite.cases if not stands(before.get(case.name), case)]
    state.desk.ended = {case.name for case in suite.cases} - {case.name for case in todo}
    state.gpu_code.start(todo, options.every_module)
    code, sm_count = _build(state, todo), environment.sm_count
    todo = [c for c in todo if not stands(before.get(c.name), c, code.get(c.name, ""), sm_count)]
    state.desk.ended = {case.name for case in suite.cases} - {case.name for case in todo}
    _run_problems(state, todo)
    file.end(time.perf_counter() - began)


def _open(state: _State) -> list[Environment]:
    """The environment of each device, or of the first worker where there are none; all devices are alike."""
    devices, workers = state.options.devices, [station.worker for station in state.stations]
    if len(devices) < 2:
        return [workers[0].open()]
    state.desk.announce("build", f"opening {len(devices)} devices")
    with ThreadPoolExecutor(len(devices)) as pool:
        found = list(pool.map(Worker.open, workers))
    for device, environment in zip(devices, found, strict=True):
        if environment.uuid not in ("", device.uuid):
            raise EnvironmentFault(f"GPU {device.index} is {device.uuid}, but its worker sees {environment.uuid}")
    require_alike({f"GPU {device.index}": environment for device, environment in zip(devices, found, strict=True)})
    return found


CANARY_LIMIT_S = 30.0


def _look_at_ceilings(state: _State, environments: Sequence[Environment]) -> None:
    """Keep each device's ceilings with the run, and what a quick look at two of them found where it has a clock."""
    file, devices, first = state.desk.file, state.options.devices, state.stations[0]
    if len(devices) < 2 and not (file.earlier and file.earlier.devices):
        if first.ceilings and (file.earlier is None or file.earlier.ceilings is None):
            file.write("ceilings", (_looked_at(state, first) or first.ceilings).to_json())
        return
    with ThreadPoolExecutor(len(environments)) as pool:
        looked = list(pool.map(lambda station: _looked_at(state, station), state.stations[: len(environments)]))
    for number, (station, environment) in enumerate(zip(state.stations, environments, strict=False)):
        index = devices[number].index if devices else 0
        station.device = environment.uuid or f"device {index}"
        file.device(RunDevice(environment, index, f"GPU {index}", station.device, ceilings=looked[number]))


def _looked_at(state: _State, station: Station) -> Ceilings | None:
    """A station's ceilings, with what was found where they can be looked at."""
    ceilings = station.ceilings
    if ceilings is None or not (state.options.measure and state.options.backend == "cuda"):
        return ceilings
    names = ceiling_check.probes(ceilings)
    if not names:
        return ceilings
    state.desk.announce("measure", "whether the ceilings still hold")
    try:
        cases = {limit: Catalog().case(name) for limit, name in names.items()}
        request = Probe([pack(c) for c in cases.values()], ceiling_check.TIMING)
        medians = station.worker.ask(request, CANARY_LIMIT_S)
    except OpbenchError as error:
        unknown = CeilingCheck(said=f"whether the remembered ceilings hold was not found out: {error}")
        return replace(ceilings, canary=unknown)
    work = {limit: c.problem.flops() if "flops" in limit else c.problem.bytes() for limit, c in cases.items()}
    seen = {limit: work[limit] / medians[case.name] for limit, case in cases.items()}
    return replace(ceilings, canary=ceiling_check.judge(ceilings, seen))


def _build(state: _State, cases: Sequence[Case]) -> dict[str, str]:
    """Compile all modules, remember what does not compile or run here; checksums of cases' machine code, if any."""
    if not cases:
        return {}
    built, code = 0, {}

    def build(worker: Worker, part: Sequence[Case]) -> None:
        def listen(told: Told) -> None:
            nonlocal built
            if isinstance(told, Unsupported):
                state.known.unsupported[part[told.index].name] = told.reason
            elif isinstance(told, Built):
                names = [part[index].name for index in told.indices]
                with state.desk.changed:
                    state.known.broken |= dict.fromkeys(names, told.error) if told.error else {}
                    code.update(dict.fromkeys(names, told.machine_code_sha256))
                    built += len(names)
                    state.desk.announce("build", f"{built} of {len(cases)}")

        try:
            worker.ask(Build([pack(case) for case in part]), BUILD_LIMIT_S, listen)
        except WorkerLost:
            # A compiler that dies or hangs costs its own case: each is compiled again, alone, when it is checked.
            state.desk.announce("build", "stopped early; the rest is compiled case by case")

    state.desk.announce("build", f"{len(cases)} cases")
    # Of several devices each builds some variants: what a process pays once, such as a library's start, is paid then.
    variants = list(dict.fromkeys(case.variant.id for case in cases))
    workers = [station.worker for station in state.stations[: max(1, len(state.options.devices))]]
    shares = [[c for c in cases if variants.index(c.variant.id) % len(workers) == n] for n in range(len(workers))]
    _together(state, [partial(build, *pair) for pair in zip(workers, shares, strict=True) if pair[1]])
    return code


def _together(state: _State, tasks: Sequence[Callable[[], None]]) -> None:
    """Do tasks of several stations at once; when one fails, or the run is interrupted, all workers end."""
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
    """Problems that may take longest first, so that no device begins a long one when the others are done."""

    def guessed_s(cases: Sequence[Case]) -> float:
        """A case takes what a process does for it and some launches at a slow one's pace, its problem the inputs."""
        problem = cases[0].problem
        launches_s = LAUNCHES * (problem.flops() / SLOW_FLOPS_PER_S + problem.bytes() / SLOW_BYTES_PER_S)
        return len(cases) * (CASE_S + launches_s) + problem.bytes() / INPUT_BYTES_PER_S

    return sorted(problems, key=guessed_s, reverse=True)


def _run_problems(state: _State, cases: Sequence[Case]) -> None:
    """Run the cases problem by problem, with as many workers as are worth their start."""
    problems: list[Sequence[Case]] = list(iterate_problems(cases))
    several = len(state.options.devices) > 1
    wanted = len(problems) if several else -(-len(cases) // CASES_PER_WORKER)
    stations = state.stations[: max(1, min(len(state.stations), wanted))]
    state.dispatch.deaths_allowed = DEATHS if several else 1
    state.dispatch.add(slowest_first(problems) if several else problems)
    _together(state, [partial(_work, state, station) for station in stations])


def _work(state: _State, station: Station) -> None:
    """Run problems on one station until none is left, or until its device is of no use any more."""
    desk, dispatch, name = state.desk, state.dispatch, str(station.worker.log)
    terms = Terms(
        state.options.backend,
        state.options.measure,
        state.suite.time_limit_s,
        state.suite.timing,
        state.options.processes,
    )
    problems = ProblemRun(terms, state.known, _Counter(desk, dispatch, name), state.gpu_code)
    while True:
        with desk.changed:
            desk.changed.wait_for(lambda: desk.stopped or dispatch.done or dispatch.waiting)
            cases = None if desk.stopped else dispatch.give(name)
        if cases is None:
            return
        try:
            if dispatch.deaths_allowed > 1 and not _opens(state, station, name):
                return
            problems.run(station, cases)
        except WorkerLost as lost:
            desk.announce("lost", f"{lost}; its problem is measured again")
            _end_of_problem(state, dispatch.given_back, name)
        else:
            _end_of_problem(state, dispatch.finished, name)


def _opens(state: _State, station: Station, name: str) -> bool:
    """Whether a device is still of use: else its problem goes to the others, of which the last raises its fault."""
    try:
        station.worker.open()
    except EnvironmentFault as fault:
        with state.desk.changed:
            state.lost_devices += 1
            if state.lost_devices == len(state.options.devices):
                raise
        _end_of_problem(state, state.dispatch.given_back, name)
        state.desk.announce("lost", f"a device: {fault}; the others go on")
        return False
    return True


def _end_of_problem(state: _State, leave: Callable[[str], None], name: str) -> None:
    with state.desk.changed:
        leave(name)
        state.desk.changed.notify_all()


class _Counter:
    """The run's desk for one worker, which also keeps account of what is left of its problem."""

    def __init__(self, desk: RunDesk, dispatch: Dispatch[Case], name: str) -> None:
        self._desk, self._dispatch, self._name = desk, dispatch, name
        self.announce = desk.announce

    def started(self, case: str) -> None:
        """Nothing: the worker itself is here, and says at which case it died."""

    def record(self, outcomes: Sequence[Ended]) -> None:
        """Put outcomes on disk."""
        with self._desk.changed:
            self._desk.record(outcomes)
            self._dispatch.judged(self._name, [result.case for result, _ in outcomes])

    def is_to_blame(self, case: str) -> bool:
        """Whether workers died at this case more often than the machine may be held to account for."""
        with self._desk.changed:
            return self._dispatch.blamed(case)


__all__ = ["Progress", "RunSetup", "Tell", "TimingOptions", "WorkerLost", "run_suite"]
