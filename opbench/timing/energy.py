"""What one launch costs in joules: calls without a break for long enough that the device's slow counter can tell.

Pure logic over a `Clock`: no GPU here, and a fake clock in the tests.
"""

from __future__ import annotations

import itertools
import math
import time

from opbench.errors import EnvironmentFault
from opbench.timing.clock import Clock, Launch, Now

WINDOW_S = 0.4
"""Of calls without a break. NVIDIA's counter moves every 20 to 100 ms, so that four of its steps at least are seen."""
BATCH_S = 5e-3
"""Between two looks at the counter, which say when it moved."""
PATIENCE_S = 3.0
"""A counter that did not move twice in so long says nothing."""
MOST_AT_ONCE = 500
"""A stream holds about a thousand launches before it makes the host wait."""


class EnergyMeter:
    """Joules a launch: the power between two moves of the counter, times what a call takes in the same window.

    A window need not begin with a move of the counter, and the counter is looked at while the device works, so that
    it does not idle meanwhile.
    """

    def __init__(self, clock: Clock, window_s: float = WINDOW_S, now: Now = time.perf_counter) -> None:
        self._clock, self._window_s, self._now = clock, window_s, now

    def joules(self, launch: Launch) -> float:
        """Of one launch among many; raises EnvironmentFault where the counter is missing or does not move."""
        alone_s = max(1e-7, min(self._clock.sample(launch, hold=False).seconds for _ in range(2)))
        count = max(1, min(MOST_AT_ONCE, math.ceil(BATCH_S / alone_s)))
        calls, readings = 0, [self._read()]

        def batch() -> None:
            nonlocal calls
            for _ in range(count):
                launch()
            calls += count
            readings.append(self._read())

        began = self._now()
        while True:
            self._clock.sample(batch, hold=False)
            spent_s = self._now() - began
            moves = [after for before, after in itertools.pairwise(readings) if after[1] != before[1]]
            if spent_s >= self._window_s and len(moves) >= 3:
                break
            if spent_s > max(self._window_s, PATIENCE_S):
                raise EnvironmentFault(
                    f"the GPU's energy counter moved {len(moves)} times in {spent_s:.1f} s; 3 are needed to rank by "
                    "joules. Rank by time: leave --energy out"
                )
        (first_s, first_j), (last_s, last_j) = moves[0], moves[-1]
        return (last_j - first_j) / (last_s - first_s) * spent_s / calls

    def _read(self) -> tuple[float, float]:
        found = self._clock.device_state().energy_j
        if found is None:
            raise EnvironmentFault(NO_COUNTER)
        return self._now(), found


NO_COUNTER = (
    "this GPU or its driver counts no energy (NVML: nvmlDeviceGetTotalEnergyConsumption, Volta and newer, needs "
    "nvidia-ml-py; not on a MIG slice), which --energy ranks by. Rank by time: leave --energy out"
)
