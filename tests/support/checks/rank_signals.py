"""A signal that ends or stops one rank of a training in the middle of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from opbench.networks.train import ranks
from opbench.networks.train.train_options import TrainingProgress


class RankSignal:
    """Sends a signal to rank 1 once, when the training has done `step` steps; pass `tell` to the training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: signal.Signals, step: int) -> None:
        self.processes: list[ranks._Processes] = []
        """The processes of all ranks, when the training has started."""
        self._which, self._step, self._sent_s = which, step, 0.0
        start = ranks._Processes.run
        monkeypatch.setattr(ranks._Processes, "run", lambda own, *to: (self.processes.append(own), start(own, *to)))

    def tell(self, standing: TrainingProgress) -> None:
        if not self._sent_s and standing.step >= self._step:
            self._sent_s = time.monotonic()
            self.processes[0]._processes[1].send_signal(self._which)

    def seconds_since(self) -> float:
        """Return the time since the signal was sent."""
        assert self._sent_s, "no signal was sent"
        return time.monotonic() - self._sent_s

    def return_codes(self) -> list[int | None]:
        """Return the exit status of each rank's process, None for one that runs."""
        return [process.returncode for process in self.processes[0]._processes]

    def still_listed(self) -> list[int]:
        """Return the ids of processes that the system still lists with a command line."""
        return [p.pid for p in self.processes[0]._processes if Path(f"/proc/{p.pid}/cmdline").exists()]
