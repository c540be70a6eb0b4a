"""What the self-test asks of a device: clocks, and kernels whose length is known."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Protocol

from opbench.backend.environment import Environment
from opbench.errors import LaunchError
from opbench.timing.clock import Clock, Launch


class SelftestClock(Clock, Protocol):
    """A clock with kernels of its own to be checked with."""

    def offset(self) -> float:
        """Seconds that this clock reads beyond a kernel's own time, calibrated on this device."""

    def nothing(self) -> None:
        """Launch an empty kernel."""

    def cycles(self, count: int) -> Launch:
        """A launch of one thread that lasts a number of cycles."""

    def chase(self, nbytes: int) -> Launch:
        """A launch of one thread whose every load waits for the one before, in so much memory of this clock's own."""

    def read(self, nbytes: int) -> Launch:
        """A launch of the whole device that reads so much memory of this clock's own once; at most twice the L2."""

    def spin(self, seconds: float) -> Launch:
        """A launch that lasts so long by `%globaltimer`."""

    def inside(self, cycles: int) -> tuple[float, float, int]:
        """One such kernel's span, and what it says itself: seconds by `%globaltimer`, cycles."""


class SelftestDevice(Protocol):
    """A backend of a GPU, as far as the self-test needs it."""

    def clock(self, mode: str = "cold") -> SelftestClock:
        """A clock that times "cold", after a flush that leaves the L2 "dirty", "hot" or as a "graph"."""

    def environment(self) -> Environment:
        """Return device, driver and versions."""


@dataclass(frozen=True)
class Cell:
    """One kernel of known work: so many cycles of one thread, or so many bytes read by all."""

    kind: str
    """"cycles" or "read"."""
    amount: int
    name: str

    def launch(self, memory: SelftestClock) -> Launch:
        """The kernel, in the memory of a clock: of `untouched`, for its times to be cold."""
        return memory.cycles(self.amount) if self.kind == "cycles" else memory.read(self.amount)

    def to_text(self) -> str:
        """For a command line."""
        return f"{self.kind}:{self.amount}:{self.name}"

    @classmethod
    def from_text(cls, text: str) -> Cell:
        """The inverse of `to_text`."""
        kind, amount, name = text.split(":", 2)
        return cls(kind, int(amount), name)


def untouched(device: SelftestDevice) -> SelftestClock:
    """The clock whose memory the cold clock's flush does not read: of its own memory the flush leaves some in L2."""
    return device.clock("hot")


def l2_bytes(device: SelftestDevice) -> int:
    """Size of the L2 cache; of a device that does not say, that of a small one."""
    return device.environment().l2_bytes or 4 << 20


def size_text(nbytes: int) -> str:
    """Such as "64 KiB"."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def cycles_per_second(clock: SelftestClock, count: int = 200_000, repeats: int = 7) -> float:
    """Cycles of `clock.cycles` in a second of this clock, from two lengths: what every launch costs cancels."""
    spans = []
    for cycles in (count, 3 * count):
        launch = clock.cycles(cycles)
        clock.sample(launch, hold=False)
        spans.append(statistics.median(clock.sample(launch).seconds for _ in range(repeats)))
    if spans[1] <= spans[0]:
        raise LaunchError(
            f"a kernel of {3 * count} cycles reads {spans[1]:.3g} s, one of {count} cycles {spans[0]:.3g} s: "
            "this clock does not time kernels; see what else uses the GPU (nvidia-smi) and try again"
        )
    return 2 * count / (spans[1] - spans[0])
