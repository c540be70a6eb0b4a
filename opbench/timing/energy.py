"""Measure joules per launch: repeat launches without a break until the device's slow energy counter has changed.

The logic only uses a `Clock`: it needs no GPU, and tests use a fake clock.
"""

from __future__ import annotations

import itertools
import math
import time

from opbench.errors import EnvironmentFault
from opbench.timing.clock import Clock, Launch, SecondsClock

WINDOW_S = 0.4
"""Least duration of the launches. NVIDIA's counter changes every 20 to 100 ms, so this covers at least four changes."""
BATCH_S = 5e-3
"""Time between two readings of the counter."""
COUNTER_LIMIT_S = 3.0
"""If the counter changed fewer than three times in this time, the measurement fails."""
MAX_LAUNCHES = 500
"""Most launches in a batch: a stream queues about a thousand launches before the host blocks."""


class EnergyMeter:
    """Measures joules per launch: power between two changes of the counter, times the time per launch in the same
    window.

    A window need not start at a change of the counter. The counter is read while the device works, so the device does
    not become idle.
    """

    def __init__(self, clock: Clock, now_s: SecondsClock = time.perf_counter) -> None:
        self._clock, self._now = clock, now_s

    def joules(self, launch: Launch) -> float:
        """Return the joules of one launch among many; raise EnvironmentFault without a counter that changes."""
        launch_s = max(1e-7, min(self._clock.sample(launch, hold_stream=False).seconds for _ in range(2)))
        count = max(1, min(MAX_LAUNCHES, math.ceil(BATCH_S / launch_s)))
        launch_count, readings = 0, [self._read()]

        def batch() -> None:
            nonlocal launch_count
            for _ in range(count):
                launch()
            launch_count += count
            readings.append(self._read())

        start_s = self._now()
        while True:
            self._clock.sample(batch, hold_stream=False)
            spent_s = self._now() - start_s
            changes = [later for earlier, later in itertools.pairwise(readings) if later[1] != earlier[1]]
            if spent_s >= WINDOW_S and len(changes) >= 3:
                break
            if spent_s > max(WINDOW_S, COUNTER_LIMIT_S):
                raise EnvironmentFault(
                    f"the GPU's energy counter changed {len(changes)} times in {spent_s:.1f} s, and at least 3 changes "
                    "are needed to rank by joules; remove --energy to rank by time",
                    kind="too-few-readings",
                    value=len(changes),
                    allowed=3,
                )
        (first_s, first_j), (last_s, last_j) = changes[0], changes[-1]
        return (last_j - first_j) / (last_s - first_s) * spent_s / launch_count

    def _read(self) -> tuple[float, float]:
        energy_j = self._clock.device_state().energy_j
        if energy_j is None:
            raise EnvironmentFault(NO_COUNTER, kind="no-energy-counter", subject="--energy")
        return self._now(), energy_j


NO_COUNTER = (
    "--energy ranks configs by their energy, but this GPU or its driver counts no energy (NVML counts energy on Volta "
    "and newer, with the package nvidia-ml-py, and not on a MIG slice); remove --energy to rank by time"
)
