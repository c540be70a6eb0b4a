"""Joules a launch from a counter that moves slowly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opbench.errors import EnvironmentFault
from opbench.timing.clock import DeviceState, Sample
from opbench.timing.energy import EnergyMeter
from support.checks.errors import refuses
from support.fakes.quiet_clock import QuietClock


class CountingClock(QuietClock):
    """A device whose launches take 37 us at some power, and whose counter moves every so often; hot: twice a sample."""

    def __init__(self, watts: float, every_s: float = 0.1, counts: bool = True) -> None:
        self.watts, self.every_s, self.counts, self.now_s, self.launches = watts, every_s, counts, 0.0123, 0

    def launch(self) -> None:
        self.now_s += 37e-6
        self.launches += 1

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        before = self.now_s
        launch()
        return Sample(self.now_s - before)

    def device_state(self) -> DeviceState:
        moved = self.now_s // self.every_s if self.every_s else 0
        return DeviceState(energy_j=5000.0 + self.watts * moved * self.every_s if self.counts else None)


@pytest.mark.parametrize("every_s", [0.02, 0.1])
@pytest.mark.parametrize("watts", [180.0, 640.0])
def test_joules_are_power_times_the_time_of_a_call(watts: float, every_s: float) -> None:
    clock = CountingClock(watts, every_s)
    joules = EnergyMeter(clock, now_s=lambda: clock.now_s).joules(clock.launch)
    assert joules == pytest.approx(watts * 37e-6, rel=0.03)
    assert 0.35 < clock.launches * 37e-6 < 0.8, "long enough for the counter, and no longer"


def test_a_counter_that_is_missing_or_stands_still_is_told() -> None:
    missing, still = CountingClock(1, counts=False), CountingClock(1, every_s=0.0)
    with pytest.raises(EnvironmentFault, match="counts no energy"):
        EnergyMeter(missing, now_s=lambda: missing.now_s).joules(missing.launch)
    with refuses("too-few-readings", value=0, error=EnvironmentFault):
        EnergyMeter(still, now_s=lambda: still.now_s).joules(still.launch)
