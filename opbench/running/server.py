"""The worker process: answer requests that arrive through the pipe whose file descriptor is its argument."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from opbench.backend.base import Backend, DeviceClock, TimedBackend, TracingBackend
from opbench.backend.environment import Environment
from opbench.cage.fork_server import ForkServer
from opbench.cage.system import die_with_parent
from opbench.checking.backends import open_backend, start_fork_server
from opbench.checking.binding import bind_unchecked
from opbench.checking.checking import CheckResult, Session
from opbench.checking.contents import TIMED_INPUT_KINDS
from opbench.checking.experiment import KnockOutTimes, time_cubins
from opbench.checking.measuring import MeasureResult, measure_cases, relaunch_cases
from opbench.checking.memory import MemoryCheckResult, check_memory
from opbench.checking.racing import RaceResult, measure_in_rounds
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError, writing_remedy
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.cubin import BadCubin, read_cubin
from opbench.gpu.compile.fitting import CompiledCase, compile_case
from opbench.gpu.compile.resources import resources_of
from opbench.kernels.capability import missing_capability
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.launch import BuildRequest
from opbench.nvtx import case_range, phase_range
from opbench.running.protocol import (
    CONFINED,
    Answer,
    BuildAhead,
    BuildModules,
    CaseResources,
    CaseStarted,
    CaseUnsupported,
    CheckCase,
    CheckMemory,
    CompileForGpu,
    CompileOneCase,
    FindUnsupported,
    MeasureCases,
    ModuleBuilt,
    OnNotification,
    OpenBackend,
    PackedCase,
    PhasesTimed,
    Probe,
    RaceCases,
    RelaunchCases,
    Request,
    RequestFailed,
    SampleTaken,
    TimeCubins,
    unpack,
)
from opbench.timing.phases import take_phases, timed_phase
from opbench.timing.sampling import measure

NICENESS = 10
"""The lower priority of a process that compiles while another process measures."""


def main() -> None:
    """Answer requests until the pipe closes."""
    # The fork server must not know seeds and inputs, so it starts before the first request.
    fork_server = start_fork_server() if CONFINED in sys.argv[2:] else None
    pipe = Connection(int(sys.argv[1]))
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    server: Server | None = None
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        reply: Answer | RequestFailed
        try:
            if isinstance(request, OpenBackend):
                with timed_phase("open"):
                    server = Server(request, fork_server)
                    reply = Answer(server.environment())
            else:
                assert server is not None
                reply = Answer(server.serve(request, pipe.send))
        except OpbenchError as error:
            reply = RequestFailed(error, fatal=isinstance(error, LaunchError))
        except MemoryError as error:
            text = f"not enough memory: {error}; choose a smaller problem, or raise the limit (ulimit -v)"
            reply = RequestFailed(EnvironmentFault(text), fatal=False)
        except Exception as error:
            traceback.print_exc()
            reply = RequestFailed(OpbenchError(f"{type(error).__name__}: {error}"), fatal=True)
        if phases := take_phases():
            pipe.send(PhasesTimed(phases))
        pipe.send(reply)


def _die_with_parent(parent: int) -> None:
    """End this process within a short time after its parent ends, even if a kernel hangs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Server:
    """Answer requests about cases on one backend."""

    def __init__(self, request: OpenBackend, fork_server: ForkServer | None = None) -> None:
        self._opening = request
        self._fork_server = fork_server
        self.catalog = Catalog(request.roots)

    @functools.cached_property
    def backend(self) -> Backend:
        """Return the backend of this process."""
        return open_backend(self._opening.backend, self._opening.capability, self._fork_server)

    @functools.cached_property
    def session(self) -> Session:
        """Return the session that runs cases on the backend."""
        opening = self._opening
        return Session(self.backend, opening.seed, opening.modelled_gpu, opening.traced_work, opening.secret)

    def environment(self) -> Environment:
        """Open the backend and return its environment; an empty one for a process that only compiles."""
        if not self._opening.backend:
            return Environment()
        return replace(self.backend.environment(), sm_count=self.session.sm_count)

    def serve(self, request: Request[Any], notify: OnNotification) -> object:
        """Handle one request and return its answer."""
        with timed_phase(PHASES.get(type(request), "other")):
            return HANDLERS[type(request)](self, request, notify)

    def build(self, request: BuildModules, notify: OnNotification) -> None:
        """Compile every module once and notify the parent of each; an error fails only the module's cases.

        A module that will be traced gets the instrumented build.
        """
        indices_of_module: dict[tuple[BuildRequest, bool], list[int]] = {}
        for index, case in self._supported_cases(request.cases, notify):
            if not case.variant.is_library:
                indices_of_module.setdefault((case.request(), self.session.is_traced(case)), []).append(index)
        with phase_range("build"), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for built in pool.map(self._compile, indices_of_module.items()):
                notify(built)

    def _supported_cases(self, cases: Sequence[PackedCase], notify: OnNotification) -> Iterator[tuple[int, Case]]:
        """Yield the cases that can run here, with their indices; notify the parent of the others."""
        for index, packed in enumerate(cases):
            try:
                case = unpack(self.catalog, packed)
                reason = self.session.unsupported_reason(case)
            except UsageError as refused:
                notify(ModuleBuilt([index], refused.reason))
                continue
            if reason:
                notify(CaseUnsupported(index, reason))
            else:
                yield index, case

    def find_unsupported(self, request: FindUnsupported, notify: OnNotification) -> None:
        """Notify the parent of each case that cannot run here."""
        for _ in self._supported_cases(request.cases, notify):
            pass

    def build_ahead(self, request: BuildAhead, notify: OnNotification) -> None:
        """Compile every module once for a GPU that another process uses; notify the parent of each.

        Cases without a module, and cases that the GPU does not support, count as built.
        """
        os.nice(NICENESS)
        die_with_parent(os.getppid())  # the parent may have paused this process, which then does not see its end
        indices_of_module: dict[BuildRequest, list[int]] = {}
        for index, packed in enumerate(request.cases):
            try:
                case = unpack(self.catalog, packed)
                module = None if case.variant.is_library or case.unmet_requirement() else case.request()
            except UsageError as refused:
                notify(ModuleBuilt([index], refused.reason))
                continue
            if module is None or missing_capability(request.capability, module.compute_capability):
                notify(ModuleBuilt([index]))
            else:
                indices_of_module.setdefault(module, []).append(index)

        def compile_module(module: BuildRequest) -> Path:
            return nvrtc.compile_cubin(module, nvrtc.architecture(request.capability, module)).cubin

        with phase_range("build"), ThreadPoolExecutor(request.threads) as pool:
            builds = [
                pool.submit(_module_built, indices, partial(compile_module, module))
                for module, indices in indices_of_module.items()
            ]
            try:
                for build in as_completed(builds):
                    notify(build.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _compile(self, item: tuple[tuple[BuildRequest, bool], list[int]]) -> ModuleBuilt:
        (request, traced), indices = item
        traced_compile = (
            self.backend.compile_traced if isinstance(self.backend, TracingBackend) else self.backend.compile
        )
        return _module_built(indices, partial(traced_compile if traced else self.backend.compile, request))

    def compile_for(self, request: CompileForGpu, notify: OnNotification) -> None:
        """Compile cases for a GPU that need not be present; notify the parent of each case's resources."""
        cases: dict[int, Case] = {}
        for index, packed in enumerate(request.cases):
            with contextlib.suppress(UsageError):  # the build reports the error
                cases[index] = unpack(self.catalog, packed)
        cases_to_compile = cases if request.every else representative_modules(cases)
        chosen_indices = list(cases_to_compile)
        for position, resources in resources_of(cases_to_compile.values(), request.gpu, request.machine_code):
            notify(CaseResources(chosen_indices[position], resources))

    def compile_one(self, request: CompileOneCase, notify: OnNotification) -> CompiledCase:
        """Compile one case for a GPU model into the cache."""
        return compile_case(unpack(self.catalog, request.case), request.target)

    def check(self, request: CheckCase, notify: OnNotification) -> CheckResult:
        """Check one case."""
        case = unpack(self.catalog, request.case)
        try:
            if not self.session.is_sampled(case):
                prepared = self.session.prepare(case.problem, request.given_inputs)
                if isinstance(self.backend, TimedBackend) and request.given_inputs is None:
                    for kind in TIMED_INPUT_KINDS[1:]:
                        prepared.prefetch(kind)  # The measurement that follows needs these inputs.
        except EnvironmentFault as error:  # this problem is too large for the machine; the next one may fit
            raise LaunchError(error.message, error.location, cause=error) from None
        with phase_range("check"), case_range(case.name, case.variant.operator):
            return self.session.check(case, request.given_inputs)

    def check_memory(self, request: CheckMemory, notify: OnNotification) -> MemoryCheckResult:
        """Check a file's launches without a reference."""
        with phase_range("check"):
            return check_memory(self.backend, request.plan, self._opening.seed)

    def measure(self, request: MeasureCases, notify: OnNotification) -> MeasureResult:
        """Measure the right cases of one problem."""
        with phase_range("measure"):
            return measure_cases(
                self.session,
                [unpack(self.catalog, packed) for packed in request.cases],
                request.timing,
                self._clock(request.timing.mode),
                on_start=lambda name: notify(CaseStarted(name)),
                on_sample=lambda name, seconds: notify(SampleTaken(name, seconds)),
                check_again=request.check_again,
                prepared_cases=request.prepared_cases,
            )

    def relaunch(self, request: RelaunchCases, notify: OnNotification) -> MeasureResult:
        """Launch right cases of one problem again without timing them, and judge their outputs."""
        with phase_range("measure"):
            cases = [unpack(self.catalog, packed) for packed in request.cases]
            return relaunch_cases(self.session, cases, lambda name: notify(CaseStarted(name)))

    def measure_in_rounds(self, request: RaceCases, notify: OnNotification) -> RaceResult:
        """Measure cases in rounds; a case that is clearly slower than the fastest drops out."""
        with phase_range("measure"):
            return measure_in_rounds(
                self.session,
                [unpack(self.catalog, packed) for packed in request.cases],
                unpack(self.catalog, request.leader) if request.leader else None,
                request.options,
                self._clock(request.mode),
                request.limit_s,
                lambda name: notify(CaseStarted(name)),
                energy=request.energy,
                mode=request.mode,
            )

    def time_cubins(self, request: TimeCubins, notify: OnNotification) -> KnockOutTimes:
        """Launch a case with edited machine code, and time the launches."""
        return time_cubins(
            self.session,
            unpack(self.catalog, request.case),
            request.cubins,
            request.timing,
            None if request.probe else self._clock(request.timing.mode),
            on_start=lambda name: notify(CaseStarted(name)),
            on_sample=lambda name, seconds: notify(SampleTaken(name, seconds)),
            judged=request.judged,
        )

    def probe(self, request: Probe, notify: OnNotification) -> dict[str, float]:
        """Measure each case by itself on its own buffers; return the medians in seconds by case name."""
        clock, medians = self._clock(), dict[str, float]()
        for packed in request.cases:
            case = unpack(self.catalog, packed)
            launch, buffers = bind_unchecked(self.backend, case)
            try:
                medians[case.name] = measure(clock, {case.name: launch}, request.timing)[case.name].median_s
            finally:
                self.backend.free(buffers)
        return medians

    def _clock(self, mode: str = "cold") -> DeviceClock:
        if not isinstance(self.backend, TimedBackend):
            raise UsageError(
                f"the {self.backend.name} backend counts memory traffic and measures no time; measure on a GPU: "
                "--backend cuda",
                kind="no-clock",
                subject="--backend",
                value=self.backend.name,
                allowed="cuda",
            )
        return self.backend.clock(mode)


def _module_built(indices: Sequence[int], compile_module: Callable[[], Path]) -> ModuleBuilt:
    """Compile one module; return the notification with its machine code's checksum, or with the compiler's error."""
    try:
        compiled = compile_module()
    except EnvironmentFault:
        raise
    except OpbenchError as error:
        return ModuleBuilt(indices, error.reason)
    except OSError as error:
        raise EnvironmentFault(
            f"the compiler's files cannot be written: {error}; {writing_remedy(error)}name another cache folder: "
            "export OPBENCH_CACHE=DIR",
            kind="unwritable",
            subject="OPBENCH_CACHE",
            value=error.errno,
        ) from None
    with contextlib.suppress(BadCubin):
        return ModuleBuilt(indices, machine_code_sha256=read_cubin(compiled.read_bytes()).machine_code_sha256)
    return ModuleBuilt(indices)


MAX_MODULES = 4
"""Number of modules per variant that a check compiles for the GPU unless all are requested."""


def representative_modules(cases: Mapping[int, Case]) -> dict[int, Case]:
    """Return a few modules of each variant, by number of their first case, that cover the values of its macros."""
    modules_of_variant: dict[str, dict[BuildRequest | str, list[int]]] = {}
    for index, case in cases.items():
        try:
            module: BuildRequest | str = case.request()
        except UsageError:
            module = case.name  # compiling it reports the error
        modules_of_variant.setdefault(case.variant.id, {}).setdefault(module, []).append(index)
    chosen_indices: set[int] = set()
    for modules in modules_of_variant.values():
        tunables = {name for case_indices in modules.values() for name in cases[case_indices[0]].config}
        for module in _covering_modules(list(modules), tunables):
            chosen_indices.update(modules[module])
    return {index: case for index, case in cases.items() if index in chosen_indices}


def _covering_modules(modules: Sequence[BuildRequest | str], tunables: Set[str]) -> list[BuildRequest | str]:
    """Choose as few modules as possible that cover each value of their macros, rare values first.

    Only some values of a tunable with many values are required. Other macros with many values are sizes: they
    depend on the problem and hardly affect compilation.
    """
    macros = {module: module.macros if isinstance(module, BuildRequest) else () for module in modules}
    values: dict[str, list[str]] = {}
    for name, value in dict.fromkeys(macro for settings in macros.values() for macro in settings):
        values.setdefault(name, []).append(value)
    uncovered: set[tuple[str, str]] = set()
    for name, choices in values.items():
        if len(choices) <= MAX_MODULES or name in tunables:
            uncovered |= {(name, value) for value in choices[:: -(-len(choices) // MAX_MODULES)]}
    covering_modules: list[BuildRequest | str] = []
    while len(covering_modules) < MAX_MODULES and (uncovered or not covering_modules):
        next_module = max(
            modules,
            key=lambda module_candidate: math.fsum(
                1 / len(values[name]) for name, _ in uncovered.intersection(macros[module_candidate])
            ),
        )
        covering_modules.append(next_module)
        uncovered.difference_update(macros[next_module])
    return covering_modules


HANDLERS: Mapping[type[Request[Any]], Callable[[Server, Any, OnNotification], object]] = {
    BuildAhead: Server.build_ahead,
    BuildModules: Server.build,
    CompileForGpu: Server.compile_for,
    CompileOneCase: Server.compile_one,
    CheckCase: Server.check,
    CheckMemory: Server.check_memory,
    FindUnsupported: Server.find_unsupported,
    MeasureCases: Server.measure,
    Probe: Server.probe,
    RaceCases: Server.measure_in_rounds,
    RelaunchCases: Server.relaunch,
    TimeCubins: Server.time_cubins,
}

PHASES: Mapping[type[Request[Any]], str] = {
    BuildModules: "build",
    CheckCase: "check",
    FindUnsupported: "libraries",
    MeasureCases: "measure",
    Probe: "peaks",
    RelaunchCases: "measure",
}
"""The phase of each request's time, without the time of the phases inside it."""


if __name__ == "__main__":
    main()
