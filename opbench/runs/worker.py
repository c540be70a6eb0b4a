"""The process that runs cases, so that a crash, a hang or an illegal address costs one case and not the run.

Parent and worker talk over a pipe: the parent sends one request, the worker answers with any number of progress
messages and one final one. Kernels' own output goes to the worker's log, whose end is quoted when it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from opbench.backends import open_backend
from opbench.backends.base import DeviceClock, Timed, Traced
from opbench.backends.nvrtc.cubin import BadCubin, machine_code_sha256
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.catalog.launch import BuildRequest
from opbench.decoding import to_json
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError, writing_remedy
from opbench.nvtx import case_range, phase_range
from opbench.session.binding import bind_bare
from opbench.session.checking import Session
from opbench.session.measuring import measure_cases
from opbench.timing.sampling import TimingOptions, measure

Message = dict[str, Any]
OPEN_LIMIT_S = 120.0
BUILD_LIMIT_S = 900.0


def pack(case: Case) -> Message:
    """A case as plain data, as classes loaded by path do not pickle."""
    return {
        "path": str(case.variant.path),
        "operator": case.variant.operator,
        "variant": case.variant.name,
        "source_sha256": case.variant.source_sha256,
        "config": case.config,
        "axes": case.problem.axes,
    }


def unpack(catalog: Catalog, packed: Message) -> Case:
    """The case again."""
    problem = catalog.operator(packed["operator"]).from_axes(packed["axes"])
    variant = catalog.variant_file(Path(packed["path"]), packed["operator"], packed["variant"])
    if variant.source_sha256 != packed["source_sha256"]:
        raise UsageError(f"{variant.path} or a header of it was edited since the run began; start it again")
    return Case(variant, packed["config"], problem)


# Parent's side ----------------------------------------------------------------------------------------------------


class WorkerLost(OpbenchError):
    """The worker died or was stopped at its time limit; says how."""


class WorkerHung(WorkerLost):
    """The worker was stopped at its time limit."""


class Worker:
    """A handle to one worker process, started at need and again after a loss."""

    def __init__(self, backend: str, roots: Sequence[Path], log: Path, seed: int, **session: Any) -> None:
        self.backend, self.roots, self.log, self.seed = backend, list(roots), log, seed
        self.session = session
        """What else `Session` takes."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self.environment: Message = {}

    def start(self) -> Message:
        """Start the process if there is none and open its backend; returns the environment."""
        if self._process is None:
            ours, theirs = Pipe()
            # -P: a user's folder holds an operator.py, which must not stand in for the standard library's.
            command = [sys.executable, "-P", "-m", "opbench.runs.worker", str(theirs.fileno())]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in sys.path if p]), "PYTHONUNBUFFERED": "1"}
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
                )
            theirs.close()
            self._pipe = ours
            request = {
                "do": "open",
                "backend": self.backend,
                "roots": [str(r) for r in self.roots],
                "seed": self.seed,
                "session": self.session,
            }
            self.environment = self._ask(request, OPEN_LIMIT_S)
        return self.environment

    def open(self) -> Message:
        """The environment, from a process that was started if need be; here its loss is this machine's fault."""
        try:
            found: Message = self.start()["environment"]
        except WorkerLost as error:
            raise EnvironmentFault(f"the backend cannot be opened: {error} (opbench doctor)") from None
        return found

    def ask(self, request: Message, limit_s: float, on_progress: Callable[[Message], None] | None = None) -> Message:
        """Send a request and wait for its final answer.

        `limit_s` is the longest silence allowed. Raises WorkerLost, LaunchError or what the worker raised.
        """
        self.start()
        return self._ask(request, limit_s, on_progress)

    def _ask(self, request: Message, limit_s: float, on_progress: Callable[[Message], None] | None = None) -> Message:
        assert self._pipe is not None
        try:
            self._pipe.send(request)
            while True:
                if not self._pipe.poll(limit_s):
                    self.stop()
                    raise WorkerHung(f"stopped after {limit_s:g} s without an end: the kernel hangs or is far too slow")
                answer: Message = self._pipe.recv()
                if answer.get("final"):
                    break
                if on_progress:
                    on_progress(answer)
        except (EOFError, ConnectionError, BrokenPipeError):
            raise WorkerLost(self._obituary()) from None
        if "error" in answer:
            if answer.get("fatal"):
                self.stop()
            raise _revive(answer)
        return answer

    def _obituary(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._process, self._pipe = None, None
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = _tail(self.log)
        return f"the process running it died ({cause})" + (f": {tail}" if tail else "")

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process, self._pipe = None, None


def _tail(log: Path, size: int = 4096) -> str:
    """The last line of a log, which kernels may have filled with gigabytes."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""


ERRORS: Mapping[str, type[OpbenchError]] = {c.__name__: c for c in (EnvironmentFault, LaunchError)}


def _revive(answer: Message) -> OpbenchError:
    kind = next((ERRORS[name] for name in answer["error"] if name in ERRORS), OpbenchError)
    return kind(answer["message"])


# Worker's side ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve requests from the pipe whose descriptor is the first argument until it closes."""
    pipe = Connection(int(sys.argv[1]))
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    server: Server | None = None
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            if request["do"] == "open":
                server = Server(request)
                answer: Message = {"environment": {**server.backend.environment(), "sm_count": server.session.sm_count}}
            else:
                assert server is not None
                answer = getattr(server, request["do"])(request, pipe.send)
        except OpbenchError as error:
            answer = {
                "error": [c.__name__ for c in type(error).__mro__],
                "message": str(error),
                "fatal": isinstance(error, LaunchError),
            }
        except Exception as error:
            traceback.print_exc()
            answer = {"error": [], "message": f"{type(error).__name__}: {error}", "fatal": True}
        pipe.send({**answer, "final": True})


def _die_with_parent(parent: int) -> None:
    """End this process soon after its parent, even within a kernel that hangs and so never reads the pipe again."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Server:
    """Answers requests about cases; one method per request."""

    def __init__(self, request: Message) -> None:
        self.catalog = Catalog([Path(r) for r in request["roots"]])
        self.backend = open_backend(request["backend"])
        self.session = Session(self.backend, request["seed"], **request["session"])

    def build(self, request: Message, send: Callable[[Message], None]) -> Message:
        """Compile every module of some cases in parallel; each error belongs to its own cases."""
        wanted: dict[BuildRequest, list[int]] = {}
        traced: set[BuildRequest] = set()
        for index, packed in enumerate(request["cases"]):
            try:
                case = unpack(self.catalog, packed)
                reason = self.session.unsupported(case)
                if reason:
                    send({"index": index, "unsupported": reason})
                elif not case.variant.is_library:
                    wanted.setdefault(case.request(), []).append(index)
                    if self.session.is_traced(case):
                        traced.add(case.request())
            except UsageError as refused:
                send({"indices": [index], "compile_error": str(refused)})
        with phase_range("build"), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for indices, error, code in pool.map(self._compile, wanted.items()):
                send({"indices": indices, "compile_error": error, "machine_code_sha256": code})
            for _ in pool.map(self._compile_traced, traced):
                send({"indices": [], "compile_error": ""})
        return {}

    def _compile_traced(self, request: BuildRequest) -> None:
        """Fill the cache; what does not compile has been told of already, or is told by the check."""
        assert isinstance(self.backend, Traced)
        with contextlib.suppress(OpbenchError):
            self.backend.compile_traced(request)

    def _compile(self, item: tuple[BuildRequest, list[int]]) -> tuple[list[int], str, str]:
        """The cases, the compiler's error, and a checksum of the machine code where it is a GPU's."""
        try:
            compiled = self.backend.compile(item[0])
        except EnvironmentFault:
            raise
        except OpbenchError as error:
            return item[1], str(error), ""
        except OSError as error:
            raise EnvironmentFault(
                f"the compiler's files cannot be written: {error}; {writing_remedy(error)}name another "
                "folder with OPBENCH_CACHE"
            ) from None
        with contextlib.suppress(BadCubin):
            return item[1], "", machine_code_sha256(compiled.read_bytes())
        return item[1], "", ""

    def resources(self, request: Message, send: Callable[[Message], None]) -> Message:
        """What each case's kernels take of a named GPU, which need not be here."""
        from opbench.backends.nvrtc.resources import resources_of  # NVRTC and cubins: a fifth of a second at each start

        cases: dict[int, Case] = {}
        for index, packed in enumerate(request["cases"]):
            with contextlib.suppress(UsageError):  # which its build tells
                cases[index] = unpack(self.catalog, packed)
        chosen = cases if request["every"] else few_modules(cases)
        numbers = list(chosen)
        for place, found in resources_of(chosen.values(), request["gpu"]):
            send({"index": numbers[place], **asdict(found)})
        return {}

    def check(self, request: Message, send: Callable[[Message], None]) -> Message:
        """Check one case, on inputs that are given where some are: then its outputs are in the answer."""
        case, given = unpack(self.catalog, request["case"]), request.get("given")
        try:
            self.session.prepare(case.problem, given)
        except EnvironmentFault as error:  # a problem too large for this machine, which the next one need not be
            raise LaunchError(str(error)) from None
        with phase_range("check"), case_range(case.name, case.variant.operator):
            found = self.session.check(case, given)
        verdict = found.verdict
        return {
            "verdict": verdict.to_json(),
            "right": verdict.right,
            "reason": verdict.reason,
            "resources": found.resources,
            "traffic": found.traffic,
            "machine_code_sha256": found.machine_code_sha256,
            "outputs": found.outputs,
        }

    def canary(self, request: Message, send: Callable[[Message], None]) -> Message:
        """Medians of a few probes, cold, with nothing prepared for a check."""
        clock, options = self._clock(), TimingOptions(**request["timing"])
        medians: dict[str, float] = {}
        for packed in request["cases"]:
            case = unpack(self.catalog, packed)
            launch, buffers = bind_bare(self.backend, case)
            try:
                medians[case.name] = measure(clock, {case.name: launch}, options)[case.name].median_s
            finally:
                self.backend.free(buffers)
        return {"medians_s": medians}

    def _clock(self, mode: str = "cold") -> DeviceClock:
        if not isinstance(self.backend, Timed):
            raise UsageError(f"the {self.backend.name} backend has no clock; measure on cuda")
        return self.backend.clock(mode)

    def measure(self, request: Message, send: Callable[[Message], None]) -> Message:
        """Measure right cases of one problem, interleaved; then check them again if asked to."""
        cases = [unpack(self.catalog, packed) for packed in request["cases"]]
        options = TimingOptions(**request["timing"])
        clock = self._clock(options.mode)
        with phase_range("measure"):
            found = measure_cases(
                self.session,
                cases,
                options,
                clock,
                on_start=lambda key: send({"start": key}),
                on_sample=lambda key, seconds: send({"sample": key, "s": seconds}),
                check_again=request["check_again"],
            )
        return {"measurements": {name: to_json(m) for name, m in found.measurements.items()}, "wrong": found.wrong}


FEW_MODULES = 4
"""Modules of a variant that a check compiles for the GPU, where not every one is wanted."""


def few_modules(cases: Mapping[int, Case]) -> dict[int, Case]:
    """The cases that a few modules of each variant serve, spread over all of its modules; by number."""
    by_variant: dict[str, dict[object, list[int]]] = {}
    for index, case in cases.items():
        try:
            module: object = case.request()
        except UsageError:
            module = case.name  # it is told again where it is compiled
        by_variant.setdefault(case.variant.id, {}).setdefault(module, []).append(index)
    chosen: set[int] = set()
    for modules in by_variant.values():
        for users in list(modules.values())[:: -(-len(modules) // FEW_MODULES)]:
            chosen.update(users)
    return {index: case for index, case in cases.items() if index in chosen}


def iterate_problems(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in groups of one problem each, in order of first mention."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(f"{case.variant.operator}{case.problem}", []).append(case)
    yield from groups.values()


if __name__ == "__main__":
    main()
