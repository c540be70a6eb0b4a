"""Configs compiled ahead of the GPU; each compiler is a worker process that is killed at a time limit."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from opbench.errors import OpbenchError
from opbench.gpu.compile.fitting import CompiledCase, GpuTarget
from opbench.running.protocol import CompileOneCase, OpenBackend, PackedCase
from opbench.running.worker import Worker, WorkerHung, WorkerLost
from opbench.tuning.options import TuneOptions

LOG = "compilers.log"


class Compilers:
    """A pool of compiler processes, by default one per processor; each result is returned as soon as it is done.

    The processes start at the same time as the GPU's worker. A process over the time limit is killed and replaced, and
    its config ends. NVRTC cannot be interrupted, and a pool of the standard library cannot stop one of its jobs.
    """

    def __init__(
        self, roots: tuple[Path, ...], folder: Path, limit_s: float = TuneOptions.compile_limit_s, count: int = 0
    ) -> None:
        self._limit_s = limit_s
        self._asked: queue.SimpleQueue[tuple[int, PackedCase, GpuTarget] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, CompiledCase]] = queue.SimpleQueue()
        self._pending = 0
        self._workers = [Worker(OpenBackend("", roots), folder / LOG) for _ in range(count or os.cpu_count() or 1)]
        for worker in self._workers:
            threading.Thread(target=self._serve, args=(worker,), daemon=True).start()

    def begin(self, config_number: int, packed: PackedCase, target: GpuTarget) -> None:
        """Start compiling one config; return at once."""
        self._pending += 1
        self._asked.put((config_number, packed, target))

    def done(self, wait_s: float) -> list[tuple[int, CompiledCase]]:
        """Return the configs that were compiled since the last call; wait up to `wait_s` for a first pending one."""
        compiled: list[tuple[int, CompiledCase]] = []
        while self._pending:
            try:
                compiled.append(self._done.get(block=wait_s > 0 and not compiled, timeout=wait_s))
            except queue.Empty:
                break
            self._pending -= 1
        return compiled

    def close(self) -> None:
        """Stop all compilers; unfinished configs are dropped."""
        for worker in self._workers:
            worker.end()
            self._asked.put(None)

    def _serve(self, worker: Worker) -> None:
        """Compile the requested configs one after another, in one process at a time."""
        _can_start(worker)
        while (request := self._asked.get()) is not None:
            config_number, packed, target = request
            self._done.put((config_number, self._compile(worker, CompileOneCase(packed, target))))

    def _compile(self, worker: Worker, request: CompileOneCase) -> CompiledCase:
        if not _can_start(worker):
            return CompiledCase()  # The launch compiles the config again.
        try:
            return worker.ask(request, self._limit_s)
        except WorkerHung:
            return CompiledCase(timeout_message=f"not compiled within {self._limit_s:g} s", compile_s=self._limit_s)
        except WorkerLost as error:
            return CompiledCase(compile_error=f"the compiler died: {error}")
        except OpbenchError:
            return CompiledCase()  # this machine has a problem, which the launch will report


def _can_start(worker: Worker) -> bool:
    try:
        worker.start()
    except OpbenchError:
        return False
    return True
