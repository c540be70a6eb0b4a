"""The source of times: a clock, its samples, and the state of the device that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Launch = Callable[[], None]
"""Enqueues the work of one case."""
Now = Callable[[], float]
"""Seconds of the host's clock."""


class Renewed:
    """A launch together with what renews its outputs and workspaces.

    A clock that runs the launch once more before the timed one calls `renew` between the two.
    """

    def __init__(self, launch: Launch, renew: Callable[[], None]) -> None:
        self._launch = launch
        self.renew = renew

    def __call__(self) -> None:
        """Enqueue the launch alone."""
        self._launch()


class Turns(Protocol):
    """A case whose inputs, outputs and workspaces are renewed before every sample."""

    def next_launch(self) -> Launch:
        """Renew the buffers, outside the timed span, and return the launch of the next sample."""

    def sampled(self) -> None:
        """Look at the outputs of a sample that counts; called right after the sample."""


MODES = ("cold", "hot", "graph")
"""The L2 cache flushed before each sample; the case's own data left in it; replays of a CUDA graph, over so many sets
of buffers, where they fit, that it is cold: a measurement's `mode` then says "graph, cold (N buffer sets)", else
"graph, hot"."""


def mode_text(mode: str) -> str:
    """Say how a time was taken, such as "cold L2" or "graph, hot"."""
    return f"{mode} L2" if mode in ("cold", "hot") else mode


@dataclass(frozen=True)
class Sample:
    """One timed execution."""

    seconds: float
    """The span: what two events around the launch see."""
    held: bool = True
    """Whether the stream really waited for the whole launch to be queued."""
    sm_clock_hz: float | None = None
    """Of the multiprocessors, from stamps right before and after the span."""


@dataclass(frozen=True)
class DeviceState:
    """Clocks and heat at one moment; None where the device does not say."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why the device runs below its highest clock."""
    energy_j: float | None = None
    """Counted by the device from some moment on: only differences mean anything."""


class Clock(Protocol):
    """The only source of times."""

    @property
    def timer(self) -> str:
        """How it measures, in words."""

    def sample(self, launch: Launch, hold: bool = True) -> Sample:
        """Time one execution with a cold cache; `hold` is off for a callable that waits for the device itself."""

    def device_state(self) -> DeviceState:
        """Clocks and heat now."""

    def launch_floor(self) -> float:
        """Seconds that this clock reads for an empty kernel."""

    def offset(self) -> float | None:
        """Seconds that this clock reads beyond a kernel's own time, calibrated on this device; None if not known."""
