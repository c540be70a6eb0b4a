"""What NVRTC makes of a run's kernels on a machine without their GPU, compiled beside the checks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from opbench.backends.nvrtc.resources import Resources
from opbench.catalog.case import Case
from opbench.errors import OpbenchError
from opbench.runs.worker import BUILD_LIMIT_S, Worker, pack


class GpuCode:
    """Compiles cases for a GPU in a process of its own, in the background, and waits for each where it is asked for.

    Whatever goes wrong with the process is no fault of a case.
    """

    def __init__(self, worker: Worker, gpu: str) -> None:
        self._worker, self._gpu = worker, gpu
        self._found: dict[str, dict[str, Any]] = {}
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

    def of(self, case: Case) -> dict[str, Any]:
        """The fields of `Resources` for a case; empty ones where it was not compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self.knows(case))
            return self._found.get(case.name) or asdict(Resources())

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._worker.stop()

    def _compile(self, cases: Sequence[Case], every: bool) -> None:
        said = ""
        request = {"do": "resources", "gpu": self._gpu, "cases": [pack(c) for c in cases], "every": every}
        try:
            self._worker.ask(request, BUILD_LIMIT_S, lambda message: self._keep(cases[message["index"]], message))
        except OpbenchError as error:
            said = f"not compiled for a GPU: {error}"
        with self._changed:
            for case in cases:
                self._found.setdefault(case.name, asdict(Resources(missing=said)))
            self._ended = True
            self._changed.notify_all()

    def _keep(self, case: Case, message: dict[str, Any]) -> None:
        with self._changed:
            self._found[case.name] = message
            self._changed.notify_all()
