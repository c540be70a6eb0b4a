"""The time that a process spends in each phase of its work, such as references or samples."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator


class PhaseTimer:
    """Add up the seconds of nested phases; the time of an inner phase counts for the inner phase only."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._seconds: dict[str, float] = defaultdict(float)
        self._open_phases: list[str] = []
        self._last_change_s = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase.

        Only the main thread counts, because the phases of a process must not exceed its wall time.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._add_time()
        self._open_phases.append(name)
        try:
            yield
        finally:
            self._add_time()
            self._open_phases.pop()

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        self._add_time()
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    def _add_time(self) -> None:
        """Add the time since the last call to the innermost open phase."""
        now_s = self._now_s()
        if self._open_phases:
            self._seconds[self._open_phases[-1]] += now_s - self._last_change_s
        self._last_change_s = now_s


_process = PhaseTimer()
timed_phase = _process.phase
take_phases = _process.take
