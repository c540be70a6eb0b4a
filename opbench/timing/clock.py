"""The interface of a clock: the only source of times, its samples, and the state of its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Launch = Callable[[], None]
"""Enqueues the work of one case."""
SecondsClock = Callable[[], float]
"""Seconds of the host's clock."""


def _nothing() -> None:
    """Do nothing, because the launch itself wrote the outputs."""


class TimedLaunch:
    """A launch in two parts: a clock times only `run`, and `collect` follows untimed.

    A library that returns new arrays computes in `run`, and copies them into the outputs in `collect`: a user of the
    library would not make that copy. A call does both.
    """

    def __init__(self, run: Launch, collect: Launch = _nothing) -> None:
        self.run, self.collect = run, collect

    def __call__(self) -> None:
        """Enqueue the timed launch, then the part after it that is not timed."""
        self.run()
        self.collect()


class RenewableLaunch(TimedLaunch):
    """A launch, and a function that renews the launch's outputs and workspaces.

    A clock that runs an extra, untimed launch before the timed one calls `renew` between the two.
    """

    def __init__(self, launch: Launch, renew: Callable[[], None]) -> None:
        timed_launch = launch if isinstance(launch, TimedLaunch) else TimedLaunch(launch)
        super().__init__(timed_launch.run, timed_launch.collect)
        self.renew = renew


class LaunchSource(Protocol):
    """A case whose inputs, outputs and workspaces are renewed before every sample."""

    def next_launch(self) -> Launch:
        """Renew the buffers, outside the timed interval, and return the launch of the next sample."""

    def after_sample(self) -> None:
        """Judge the outputs of the last sample if it is chosen; called after each sample that counts."""


TIMING_MODES = ("cold", "hot", "graph")
"""How the L2 cache is prepared.

"cold": it is flushed before each sample. "hot": it still holds the case's data. "graph": a CUDA graph is replayed over
enough sets of buffers to be cold where they fit; the `mode` of the measurement is then "graph, cold (N buffer sets)",
else "graph, hot".
"""


def mode_text(mode: str) -> str:
    """Describe a timing mode, such as "cold L2" or "graph, hot"."""
    return f"{mode} L2" if mode in ("cold", "hot") else mode


@dataclass(frozen=True)
class Sample:
    """The time of one execution in seconds, and the conditions of the measurement."""

    seconds: float
    """The time between two events around the launch."""
    stream_held: bool = True
    """Whether the stream was blocked until the whole launch was queued."""
    sm_clock_hz: float | None = None
    """The SM clock in Hz, from time stamps right before and after the launch; None when unknown."""


@dataclass(frozen=True)
class DeviceState:
    """Clocks, temperature and power at one moment; None where the device does not report a value."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why the device runs below its highest clock."""
    energy_j: float | None = None
    """The device's energy counter; only differences between two readings are meaningful."""


class Clock(Protocol):
    """The interface through which all times are measured."""

    @property
    def timer(self) -> str:
        """Describe how the clock measures."""

    def sample(self, launch: Launch, hold_stream: bool = True) -> Sample:
        """Time one launch with a cold cache; `hold_stream=False` is for a launch that itself waits for the device."""

    def device_state(self) -> DeviceState:
        """Read the current clocks, temperature and power."""

    def empty_kernel_s(self) -> float:
        """Return the seconds that this clock measures for an empty kernel."""

    def timing_offset_s(self) -> float | None:
        """Return the seconds that this clock adds to a kernel's time, calibrated on this device; None if unknown."""
