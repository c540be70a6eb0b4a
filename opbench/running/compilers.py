"""Compile the cases of a run in a second process: for the GPU that measures meanwhile, or for a GPU that is absent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from opbench.errors import EnvironmentFault, OpbenchError, Reason
from opbench.gpu.compile.resources import Resources
from opbench.kernels.case import Case
from opbench.running.protocol import (
    BUILD_LIMIT_S,
    BuildAhead,
    CaseResources,
    CompileForGpu,
    ModuleBuilt,
    Notification,
    OnNotification,
    Request,
    pack,
)
from opbench.running.worker import Worker


class CompilerProcess:
    """Compile cases in a process; if the process fails or dies, no case is pending any longer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._changed = threading.Condition()
        self._pending: set[str] = set()
        self._error: OpbenchError | None = None
        """The error that ended the process."""
        self.compiled_s = 0.0
        """Wall time from the start to the last case."""

    def stop(self) -> None:
        """End the process at once."""
        self._worker.end()

    def _start(
        self,
        cases: Sequence[Case],
        request: Callable[[], Request[None]],
        on_notification: OnNotification,
    ) -> None:
        """Send a request for cases in a thread; `on_notification` calls `_complete` with the cases that are ready."""

        def compile_all() -> None:
            start_s = time.perf_counter()
            try:
                self._worker.ask(request(), BUILD_LIMIT_S, on_notification)
            except OpbenchError as error:
                self._error = error
            self.compiled_s = time.perf_counter() - start_s
            self._complete([case.name for case in cases])

        self._pending = {case.name for case in cases}
        threading.Thread(target=compile_all, daemon=True).start()

    def _complete(self, names: Sequence[str]) -> None:
        with self._changed:
            self._pending.difference_update(names)
            self._changed.notify_all()


class AheadCompiler(CompilerProcess):
    """Compile cases in a process that opens no GPU; `wait` returns when the modules of some cases are ready.

    If the process dies, each check compiles its case again, alone.
    """

    def __init__(self, worker: Worker, errors: dict[str, Reason]) -> None:
        """Keep the arguments; `errors` gets the compiler's error of each case that does not compile."""
        super().__init__(worker)
        self._errors = errors
        self.machine_code: dict[str, str] = {}
        """Checksums of the machine code by case name."""
        self.waited_s = 0.0
        """Wall time in which at least one worker waited for modules, summed over the workers."""
        self._total = 0
        self._pause_count = 0
        """The number of workers that measure now."""

    def start(self, cases: Sequence[Case], capability: tuple[int, int], threads: int) -> None:
        """Start to compile cases for a GPU of this compute capability, in their order."""

        def on_notification(notification: Notification) -> None:
            if isinstance(notification, ModuleBuilt):
                names = [cases[index].name for index in notification.indices]
                with self._changed:
                    if notification.error:
                        self._errors.update(dict.fromkeys(names, notification.error))
                    self.machine_code.update(dict.fromkeys(names, notification.machine_code_sha256))
                    self._complete(names)

        self._total = len(cases)
        if cases:
            self._start(cases, lambda: BuildAhead([pack(c) for c in cases], capability, threads), on_notification)

    def wait(self, cases: Sequence[Case], on_wait: Callable[[str], None]) -> None:
        """Wait until the modules of cases are compiled; `on_wait` receives the progress.

        Raises EnvironmentFault if this machine cannot compile.
        """
        names, start_s = {case.name for case in cases}, time.perf_counter()
        while True:
            with self._changed:
                if isinstance(self._error, EnvironmentFault):
                    raise self._error
                if not names & self._pending:
                    self.waited_s += time.perf_counter() - start_s
                    return
                progress = f"{self._total - len(self._pending)} of {self._total}"
            on_wait(progress)
            with self._changed:
                self._changed.wait_for(lambda: not names & self._pending, timeout=WAIT_POLL_S)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the process while a worker measures: a busy CPU launches late and takes power from the GPU."""
        with self._changed:
            self._pause_count += 1
            self._worker.pause()
        try:
            yield
        finally:
            with self._changed:
                self._pause_count -= 1
                if not self._pause_count:
                    self._worker.resume()


class BackgroundCompiler(CompilerProcess):
    """Compile cases for a GPU model while the cpu backend checks them; `resources_of` waits for a case.

    A failure of the process fails no case. With `machine_code` the resources include a summary of the instructions.
    """

    def __init__(self, worker: Worker, gpu: str, machine_code: bool = True) -> None:
        super().__init__(worker)
        self._gpu, self._machine_code = gpu, machine_code
        self._resources: dict[str, Resources] = {}

    def start(self, cases: Sequence[Case], all_modules: bool) -> None:
        """Start to compile all modules of the cases; if `all_modules` is false, only a few of each variant."""

        def on_notification(notification: Notification) -> None:
            if isinstance(notification, CaseResources):
                name = cases[notification.index].name
                self._resources[name] = notification.resources
                self._complete([name])

        def request() -> CompileForGpu:
            return CompileForGpu(self._gpu, [pack(case) for case in cases], all_modules, self._machine_code)

        if self._gpu and cases:
            self._start(cases, request, on_notification)

    @property
    def status(self) -> str:
        """Return a progress message with the option that disables this step."""
        return f"for {self._gpu} by NVRTC, {len(self._resources)} cases done; --cpu-only skips this"

    def is_ready(self, case: Case) -> bool:
        """Return whether a case is compiled, so that `resources_of` need not wait."""
        return case.name not in self._pending

    def resources_of(self, case: Case) -> Resources:
        """Return the resources of a case on the GPU; empty if it was not compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_ready(case))
        missing = f"not compiled for a GPU: {self._error}" if self._error else ""
        return self._resources.get(case.name) or Resources(missing=missing)


WAIT_POLL_S = 1.0
"""Seconds between two progress messages of a worker that waits."""
