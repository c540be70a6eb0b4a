"""The interface that the self-test needs from a device: clocks, and kernels of known length."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Protocol

from opbench.backend.environment import Environment
from opbench.errors import LaunchError
from opbench.timing.clock import Clock, Launch


class SelftestClock(Clock, Protocol):
    """A clock that also has kernels for testing it."""

    def timing_offset_s(self) -> float:
        """Return the seconds that this clock adds to a kernel's own time, calibrated on this device."""

    def launch_empty_kernel(self) -> None:
        """Launch an empty kernel."""

    def cycles(self, count: int) -> Launch:
        """Return a launch of one thread that takes a number of cycles."""

    def chase(self, nbytes: int) -> Launch:
        """Return a launch of one thread with dependent loads over `nbytes` of this clock's own memory."""

    def read(self, nbytes: int) -> Launch:
        """Return a launch of the whole device that reads `nbytes` of this clock's own memory once; at most twice L2."""

    def spin(self, seconds: float) -> Launch:
        """Return a launch that takes a number of seconds by `%globaltimer`."""

    def inside(self, cycles: int) -> tuple[float, float, int]:
        """Run a kernel of that many cycles; return its time, and its own seconds by `%globaltimer` and cycles."""


class SelftestDevice(Protocol):
    """The part of a GPU backend that the self-test needs."""

    def clock(self, mode: str = "cold") -> SelftestClock:
        """Return a clock for a mode: "cold", "dirty" (a flush that leaves L2 dirty), "hot" or "graph"."""

    def environment(self) -> Environment:
        """Return device, driver and versions."""


@dataclass(frozen=True)
class Cell:
    """One kernel of known work: a number of cycles of one thread, or a number of bytes that all threads read."""

    kind: str
    """"cycles" or "read"."""
    amount: int
    name: str

    def launch(self, memory: SelftestClock) -> Launch:
        """Return the kernel's launch in the memory of a clock; with `untouched`, its times are cold."""
        return memory.cycles(self.amount) if self.kind == "cycles" else memory.read(self.amount)

    def to_text(self) -> str:
        """Format the kernel for a command line."""
        return f"{self.kind}:{self.amount}:{self.name}"

    @classmethod
    def from_text(cls, text: str) -> Cell:
        """Return the kernel that `to_text` wrote as this text."""
        kind, amount, name = text.split(":", 2)
        return cls(kind, int(amount), name)


def untouched(device: SelftestDevice) -> SelftestClock:
    """Return a clock with its own memory. The flush of the cold clock does not read it, so none of it stays in L2."""
    return device.clock("hot")


def l2_bytes(device: SelftestDevice) -> int:
    """Return the size of L2 in bytes; 4 MiB if the device does not report it."""
    return device.environment().l2_bytes or 4 << 20


def size_text(nbytes: int) -> str:
    """Format a size, such as "64 KiB"."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def cycles_per_second(clock: SelftestClock) -> float:
    """Return the rate of `clock.cycles` by this clock, from two lengths, so that launch overhead cancels."""
    medians_s, count = [], 200_000
    for cycles in (count, 3 * count):
        launch = clock.cycles(cycles)
        clock.sample(launch, hold_stream=False)
        medians_s.append(statistics.median(clock.sample(launch).seconds for _ in range(7)))
    if medians_s[1] <= medians_s[0]:
        raise LaunchError(
            f"a kernel of {3 * count} cycles took {medians_s[1]:.3g} s, a kernel of {count} cycles {medians_s[0]:.3g} "
            "s, so this clock does not time kernels; end other programs that use the GPU (nvidia-smi), then repeat: "
            "opbench selftest",
            kind="clock-times-nothing",
            subject="clock.cycles",
            value=tuple(medians_s),
        )
    return 2 * count / (medians_s[1] - medians_s[0])
