"""Compile the modules of a run in another process, while the GPU measures the problems whose modules are ready."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from opbench.errors import EnvironmentFault, OpbenchError
from opbench.kernels.case import Case
from opbench.running.problem import CaseFaults
from opbench.running.protocol import BUILD_LIMIT_S, BuildAhead, ModuleBuilt, Notification, pack
from opbench.running.worker import Worker


class AheadCompiler:
    """Compile cases in a process that opens no GPU; `wait` returns when the modules of some cases are ready.

    If the process dies, no case waits any longer: each check compiles its case again, alone.
    """

    def __init__(self, worker: Worker, faults: CaseFaults) -> None:
        self._worker, self._faults = worker, faults
        self.machine_code: dict[str, str] = {}
        """Checksums of the machine code by case name."""
        self.waited_s = 0.0
        """Wall time in which at least one worker waited for modules, summed over the workers."""
        self.compiled_s = 0.0
        """Wall time from the start to the last module."""
        self._pending: set[str] = set()
        self._total = 0
        self._fault: EnvironmentFault | None = None
        self._changed = threading.Condition()
        self._pause_count = 0
        """The number of workers that measure now."""

    def start(self, cases: Sequence[Case], capability: tuple[int, int], threads: int) -> None:
        """Start to compile cases for a GPU of this compute capability, in their order."""
        if not cases:
            return
        self._pending, self._total = {case.name for case in cases}, len(cases)
        threading.Thread(target=self._compile, args=(cases, capability, threads), daemon=True).start()

    def wait(self, cases: Sequence[Case], on_wait: Callable[[str], None]) -> None:
        """Wait until the modules of cases are compiled; `on_wait` receives the progress.

        Raises EnvironmentFault if this machine cannot compile.
        """
        names, start_s = {case.name for case in cases}, time.perf_counter()
        while True:
            with self._changed:
                if self._fault:
                    raise self._fault
                if not names & self._pending:
                    self.waited_s += time.perf_counter() - start_s
                    return
                progress = f"{self._total - len(self._pending)} of {self._total}"
            on_wait(progress)
            with self._changed:
                self._changed.wait_for(lambda: self._fault or not names & self._pending, timeout=WAIT_POLL_S)

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

    def stop(self) -> None:
        """End the process at once."""
        self._worker.end()

    def _compile(self, cases: Sequence[Case], capability: tuple[int, int], threads: int) -> None:
        start_s = time.perf_counter()

        def on_notification(notification: Notification) -> None:
            if isinstance(notification, ModuleBuilt):
                names = [cases[index].name for index in notification.indices]
                with self._changed:
                    if notification.error:
                        self._faults.compile_errors |= dict.fromkeys(names, notification.error)
                    self.machine_code.update(dict.fromkeys(names, notification.machine_code_sha256))
                    self._pending.difference_update(names)
                    self._changed.notify_all()

        fault = None
        try:
            self._worker.ask(
                BuildAhead([pack(case) for case in cases], capability, threads), BUILD_LIMIT_S, on_notification
            )
        except EnvironmentFault as error:
            fault = error
        except OpbenchError:
            pass  # the process died, or hung
        with self._changed:
            self._fault = fault
            self._pending.clear()
            self.compiled_s = time.perf_counter() - start_s
            self._changed.notify_all()


WAIT_POLL_S = 1.0
"""Seconds between two progress messages of a worker that waits."""
