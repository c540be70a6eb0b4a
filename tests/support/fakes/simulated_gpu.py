"""A GPU made of numbers for the self-test: kernels of known length, an L2, and noise of any shape."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opbench.backend.environment import Environment
from opbench.timing.clock import DeviceState, Sample

HERTZ = 1.98e9
TICK_S = 32e-9
NOTHING_S = 0.3e-6
Noise = Callable[[float, random.Random], float]
"""What a kernel's time is multiplied by, at a time of the world."""


def steady(now_s: float, chance: random.Random) -> float:
    """A fifth of a per cent."""
    return chance.gauss(1.0, 0.002)


def quiet(now_s: float, chance: random.Random) -> float:
    """A twentieth of a per cent, as of a kernel of an H200 that only computes."""
    return chance.gauss(1.0, 0.0005)


def drifting(now_s: float, chance: random.Random) -> float:
    """Four per cent up and down within ten seconds."""
    away = now_s / 5 % 2
    return steady(now_s, chance) * (1 + 0.04 * min(away, 2 - away))


def stepping(now_s: float, chance: random.Random) -> float:
    """Return a time that is five per cent longer in about every other second."""
    return steady(now_s, chance) * (1.05 if int(now_s / 1.3) % 2 else 1.0)


def two_modes(now_s: float, chance: random.Random) -> float:
    """Return a time that is sometimes three per cent longer."""
    return steady(now_s, chance) * (1.03 if chance.random() < 0.2 else 1.0)


def heavy_tails(now_s: float, chance: random.Random) -> float:
    """Return a time that is sometimes much longer."""
    return steady(now_s, chance) * (1 + (chance.paretovariate(1.1) if chance.random() < 0.1 else 0.0))


@dataclass
class World:
    """What all clocks of a device share; the faults are what a self-test is to find."""

    noise: Noise = steady
    seed: int = 0
    offset_s: float = 2.4e-6
    believed_offset_s: float = 2.4e-6
    bend_s: float = 0.0
    """What the clock adds to spans near 100 µs."""
    flushes: bool = True
    device_clock_error: float = 0.0
    stamps: bool = True
    overhead_s: float = 5e-3
    now_s: float = 0.0
    cached: set[str] = field(default_factory=set)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def now(self) -> float:
        return self.now_s


class SimulatedClock:
    """A clock of a mode."""

    def __init__(self, world: World, mode: str) -> None:
        self.world, self.mode, self.timer = world, mode, f"simulated, {mode}"
        self._spent_s = 0.0

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        world = self.world
        if self.mode in ("cold", "dirty"):
            world.cached.clear() if world.flushes else None
        else:
            launch()
        world.pending_s = 0.0  # type: ignore[attr-defined]
        launch()
        span = world.pending_s * world.noise(world.now_s, world.chance)  # type: ignore[attr-defined]
        span += 0.0 if self.mode == "graph" else world.offset_s + world.chance.gauss(0, 1e-8)
        span += world.bend_s if 5e-5 < span < 1.5e-4 else 0.0
        world.now_s += span + world.overhead_s
        return Sample(max(TICK_S, round(span / TICK_S) * TICK_S), True, HERTZ if world.stamps else None)

    def device_state(self) -> DeviceState:
        return DeviceState(sm_clock_hz=HERTZ)

    def empty_kernel_s(self) -> float:
        return self.world.offset_s + NOTHING_S

    def timing_offset_s(self) -> float:
        return self.world.believed_offset_s

    def launch_empty_kernel(self) -> None:
        self.world.pending_s = getattr(self.world, "pending_s", 0.0) + NOTHING_S  # type: ignore[attr-defined]

    def _lasting(self, seconds: Callable[[], float]) -> Callable[[], None]:
        def launch() -> None:
            self.world.pending_s = getattr(self.world, "pending_s", 0.0) + seconds()  # type: ignore[attr-defined]

        return launch

    def cycles(self, count: int) -> Callable[[], None]:
        return self._lasting(lambda: count / HERTZ)

    def spin(self, seconds: float) -> Callable[[], None]:
        return self._lasting(lambda: seconds / (1 + self.world.device_clock_error))

    def _cached(self, name: str, cold_s: float, hot_s: float) -> Callable[[], None]:
        def seconds() -> float:
            found = name in self.world.cached
            self.world.cached.add(name)
            return hot_s if found else cold_s

        return self._lasting(seconds)

    def chase(self, nbytes: int) -> Callable[[], None]:
        return self._cached(f"{self.mode} {nbytes}", 7e-4, 2.7e-4)

    def read(self, nbytes: int) -> Callable[[], None]:
        return self._cached(f"{self.mode} {nbytes}", 1e-6 + nbytes / 2e12, 1e-6 + nbytes / 5e12)

    def inside(self, cycles: int) -> tuple[float, float, int]:
        seconds = cycles / HERTZ
        return seconds + self.world.offset_s, seconds * (1 + self.world.device_clock_error), cycles


class SimulatedDevice:
    """Clocks of all modes in one world."""

    def __init__(self, **world: Any) -> None:
        self.world = World(**world)
        self._clocks: dict[str, SimulatedClock] = {}

    def clock(self, mode: str = "cold") -> SimulatedClock:
        return self._clocks.setdefault(mode, SimulatedClock(self.world, mode))

    def environment(self) -> Environment:
        return Environment(gpu="Simulated", driver="1.0", l2_bytes=60 << 20, uuid="GPU-0")
