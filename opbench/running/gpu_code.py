"""What NVRTC makes of a run's kernels on a machine without their GPU, compiled beside the checks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opbench.errors import OpbenchError
from opbench.gpu.compile.resources import Resources
from opbench.kernels.case import Case
from opbench.running.protocol import BUILD_LIMIT_S, CompileFor, Taken, Told, pack
from opbench.running.worker import Worker


class GpuCode:
    """Compiles cases for a GPU in a process of its own, in the background, and waits for each where it is asked for.

    Whatever goes wrong with the process is no fault of a case.
    """

    def __init__(self, worker: Worker, gpu: str) -> None:
        self._worker, self._gpu = worker, gpu
        self._found: dict[str, Resources] = {}
        self._changed = threading.Condition()
        self._ended = True

    def start(self, cases: Sequence[Case], every: bool) -> None:
        """Begin to compile: each module, or a few of each variant, which leaves out what only a size decides."""
        if not self._gpu or not cases:
            return
        self._ended = False
        threading.Thread(target=self._compile, args=(cases, every), daemon=True).start()

    @property
    def said(self) -> str:
        """What is waited for, and how not to."""
        return f"for {self._gpu} by NVRTC, {len(self._found)} cases done; --cpu-only leaves this out"

    def knows(self, case: Case) -> bool:
        """Whether nothing has to be waited for."""
        return self._ended or case.name in self._found

    def of(self, case: Case) -> Resources:
        """What a case takes; an empty answer where it was not compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self.knows(case))
            return self._found.get(case.name) or Resources()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._worker.end()

    def _compile(self, cases: Sequence[Case], every: bool) -> None:
        said = ""

        def listen(told: Told) -> None:
            if isinstance(told, Taken):
                self._keep(cases[told.index], told.resources)

        try:
            self._worker.ask(CompileFor(self._gpu, [pack(c) for c in cases], every), BUILD_LIMIT_S, listen)
        except OpbenchError as error:
            said = f"not compiled for a GPU: {error}"
        with self._changed:
            for case in cases:
                self._found.setdefault(case.name, Resources(missing=said))
            self._ended = True
            self._changed.notify_all()

    def _keep(self, case: Case, found: Resources) -> None:
        with self._changed:
            self._found[case.name] = found
            self._changed.notify_all()
