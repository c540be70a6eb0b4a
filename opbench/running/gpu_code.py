"""Compile a run's kernels with NVRTC for a GPU that this machine lacks, while the cpu backend checks them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opbench.errors import OpbenchError
from opbench.gpu.compile.resources import Resources
from opbench.kernels.case import Case
from opbench.running.protocol import BUILD_LIMIT_S, CaseResources, CompileForGpu, Notification, pack
from opbench.running.worker import Worker


class BackgroundCompiler:
    """Compile cases for a GPU model in a background process.

    `resources_of` waits until a case is compiled. A failure of the process fails no case. With `machine_code` the
    resources include a summary of the instructions.
    """

    def __init__(self, worker: Worker, gpu: str, machine_code: bool = True) -> None:
        self._worker, self._gpu, self._machine_code = worker, gpu, machine_code
        self._resources: dict[str, Resources] = {}
        self._changed = threading.Condition()
        self._ended = True

    def start(self, cases: Sequence[Case], all_modules: bool) -> None:
        """Start to compile all modules of the cases; if `all_modules` is false, only a few of each variant."""
        if not self._gpu or not cases:
            return
        self._ended = False
        threading.Thread(target=self._compile, args=(cases, all_modules), daemon=True).start()

    @property
    def status(self) -> str:
        """Return a progress message with the option that disables this step."""
        return f"for {self._gpu} by NVRTC, {len(self._resources)} cases done; --cpu-only skips this"

    def is_ready(self, case: Case) -> bool:
        """Return whether a case is compiled, so that `resources_of` need not wait."""
        return self._ended or case.name in self._resources

    def resources_of(self, case: Case) -> Resources:
        """Return the resources of a case on the GPU; empty if it was not compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_ready(case))
            return self._resources.get(case.name) or Resources()

    def stop(self) -> None:
        """End the background process at once."""
        self._worker.end()

    def _compile(self, cases: Sequence[Case], all_modules: bool) -> None:
        missing = ""

        def on_notification(notification: Notification) -> None:
            if isinstance(notification, CaseResources):
                self._store(cases[notification.index], notification.resources)

        try:
            request = CompileForGpu(self._gpu, [pack(c) for c in cases], all_modules, self._machine_code)
            self._worker.ask(request, BUILD_LIMIT_S, on_notification)
        except OpbenchError as error:
            missing = f"not compiled for a GPU: {error}"
        with self._changed:
            for case in cases:
                self._resources.setdefault(case.name, Resources(missing=missing))
            self._ended = True
            self._changed.notify_all()

    def _store(self, case: Case, resources: Resources) -> None:
        with self._changed:
            self._resources[case.name] = resources
            self._changed.notify_all()
