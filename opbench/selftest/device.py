"""What the self-test asks of a device: clocks, and kernels whose length is known."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from opbench.timing import Clock

Launch = Callable[[], None]


class SelftestClock(Clock, Protocol):
    """A clock with kernels of its own to be checked with."""

    def nothing(self) -> None:
        """Launch an empty kernel."""

    def cycles(self, count: int) -> Launch:
        """A launch of one thread that lasts a number of cycles."""

    def chase(self, nbytes: int) -> Launch:
        """A launch of one thread whose every load waits for the one before, through so much memory."""

    def read(self, nbytes: int) -> Launch:
        """A launch of the whole device that reads so much memory once."""

    def globaltimer_check(self, seconds: float) -> tuple[float, float, float]:
        """One spin seen by the host's clock (s), by `%globaltimer` (s) and in cycles of the multiprocessor."""


class SelftestDevice(Protocol):
    """A backend of a GPU, as far as the self-test needs it."""

    def clock(self, mode: str = "cold") -> SelftestClock:
        """A clock that times "cold", "hot" or as a "graph"."""

    def environment(self) -> dict[str, Any]:
        """Device, driver and versions, as JSON."""


@dataclass(frozen=True)
class Cell:
    """One kernel of known work: so many cycles of one thread, or so many bytes read by all."""

    kind: str
    """"cycles" or "read"."""
    amount: int
    name: str

    def launch(self, clock: SelftestClock) -> Launch:
        """The kernel on a device."""
        return clock.cycles(self.amount) if self.kind == "cycles" else clock.read(self.amount)

    def to_text(self) -> str:
        """For a command line."""
        return f"{self.kind}:{self.amount}:{self.name}"

    @classmethod
    def from_text(cls, text: str) -> Cell:
        """The inverse of `to_text`."""
        kind, amount, name = text.split(":", 2)
        return cls(kind, int(amount), name)


def cycles_per_second(clock: SelftestClock, count: int = 200_000, repeats: int = 7) -> float:
    """Cycles of `clock.cycles` in a second of this clock, from two lengths: what every launch costs cancels."""
    spans = []
    for cycles in (count, 3 * count):
        launch = clock.cycles(cycles)
        clock.sample(launch, hold=False)
        spans.append(statistics.median(clock.sample(launch).seconds for _ in range(repeats)))
    return 2 * count / (spans[1] - spans[0])
