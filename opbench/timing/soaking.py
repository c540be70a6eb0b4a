"""Keeping a device busy with one callable, so that its power and clocks settle where they stay under load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

KEPT_BUSY_S, STEP_S = 0.02, 0.1
"""Launches without a break before each sample of a soaked case, and at a time while it is soaked."""
MOST_AT_ONCE = 1000
"""A stream holds about a thousand launches before it makes the host wait."""

Launch = Callable[[], None]


def soak(clock: Any, launch: Launch, soak_s: float, now: Callable[[], float]) -> Launch:
    """Keep the device busy for so long; returns what keeps it so before a sample."""
    began = now()
    alone_s = min(clock.sample(launch, hold=False).seconds for _ in range(3))
    while now() - began < soak_s:
        clock.sample(_lasting(launch, alone_s, STEP_S), hold=False)
    return _lasting(launch, alone_s, KEPT_BUSY_S)


def _lasting(launch: Launch, alone_s: float, seconds: float) -> Launch:
    """So many launches one after another that they last about so long."""
    count = max(1, min(MOST_AT_ONCE, math.ceil(seconds / max(alone_s, 1e-9))))

    def launches() -> None:
        for _ in range(count):
            launch()

    return launches
