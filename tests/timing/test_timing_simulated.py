"""The measuring loop against a GPU whose true times are known: drift, steps, two modes, heavy tails."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from opbench.timing import stats
from opbench.timing.clock import Sample
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure
from support.fakes.quiet_clock import QuietClock

Noise = Callable[[random.Random], float]
"""Draws a factor whose median is 1."""

NOISES: dict[str, Noise] = {
    "normal": lambda draw: 1 + draw.gauss(0, 0.01),
    "heavy tail": lambda draw: 1 + 0.004 * draw.gauss(0, 1) / max(0.05, abs(draw.gauss(0, 1))),
    "skewed": lambda draw: 1 + 0.02 * (draw.expovariate(1) - 0.6931),
    "rare second mode": lambda draw: (1.3 if draw.random() < 0.1 else 1.0) + draw.gauss(0, 0.005) - 0.0007,
    "ticks of 32 ns": lambda draw: round((1 + draw.gauss(0, 0.01)) * 1e-4 / 32e-9) * 32e-9 / 1e-4,
}


class SimulatedGpu(QuietClock):
    """A clock and the time it measures in: a case takes its true time, times noise, times what the GPU does now."""

    timer = "simulated"

    def __init__(self, seed: int, noise: Noise, slowness: Callable[[float], float] = lambda now_s: 1.0) -> None:
        self.draw, self.noise, self.slowness = random.Random(seed), noise, slowness
        self.now_s, self._true_s = 0.0, 0.0

    def case(self, true_s: float) -> Callable[[], None]:
        """A launch that takes so long."""

        def launch() -> None:
            self._true_s = true_s

        return launch

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        slowness = self.slowness(self.now_s)
        self.now_s += 1e-3
        return Sample(self._true_s * self.noise(self.draw) * slowness, hold_stream, 2e9 / slowness)

    def rest(self, seconds: float) -> None:
        """Time that passes without a sample."""
        self.now_s += seconds

    def measure(self, options: TimingOptions, **cases: float) -> dict[str, Measurement]:
        """Measure cases of these true times beside each other."""
        launches = {name: self.case(true_s) for name, true_s in cases.items()}
        return measure(self, launches, options, now_s=lambda: self.now_s, sleep=self.rest)


FIXED = TimingOptions(warmup_s=0, target=0, max_samples=40)


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_cover_the_true_median(noise: str) -> None:
    found = [SimulatedGpu(seed, NOISES[noise]).measure(FIXED, a=1e-4)["a"] for seed in range(300)]
    covered = sum(m.low_s <= 1e-4 <= m.high_s for m in found) / len(found)
    assert covered >= 0.95 - 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_still_cover_when_the_stop_rule_picked_their_length(noise: str) -> None:
    """Stopping as soon as an interval is narrow favours those that are so by chance: it may cost some coverage."""
    options = TimingOptions(warmup_s=0, max_samples=200)
    found = [SimulatedGpu(seed, NOISES[noise]).measure(options, a=1e-4)["a"] for seed in range(300)]
    covered = sum(m.low_s <= 1e-4 <= m.high_s for m in found) / len(found)
    assert covered >= 0.85
    off = [abs(m.median_s / 1e-4 - 1) for m in found if m.stop_reason == "target"]
    assert off and stats.quantile(off, 0.9) < 2 * options.target


def overlap(a: Measurement, b: Measurement) -> bool:
    """Whether the two share a rank."""
    return a.low_s <= b.high_s and b.low_s <= a.high_s


@pytest.mark.parametrize("noise", NOISES)
def test_equal_cases_are_rarely_called_different_and_unlike_ones_mostly_are(noise: str) -> None:
    equal = [SimulatedGpu(seed, NOISES[noise]).measure(FIXED, a=1e-4, b=1e-4) for seed in range(200)]
    assert sum(not overlap(m["a"], m["b"]) for m in equal) <= 0.04 * 200
    unlike = [SimulatedGpu(seed, NOISES[noise]).measure(FIXED, a=1e-4, b=1.03e-4) for seed in range(60)]
    assert sum(not overlap(m["a"], m["b"]) for m in unlike) >= 0.9 * 60


SLOWNESS: dict[str, Callable[[float], float]] = {
    "a drift of 4 %": lambda now_s: 1 + 0.04 * min(1.0, now_s / 0.1),
    "a step of 4 %": lambda now_s: 1.04 if now_s > 0.05 else 1.0,
    "a saw of 4 %": lambda now_s: 1 + 0.04 * (now_s / 0.09 % 1),
}


@pytest.mark.parametrize("slowness", SLOWNESS)
def test_under_drift_equal_cases_tie_when_interleaved_and_not_one_after_the_other(slowness: str) -> None:
    def gpu(seed: int) -> SimulatedGpu:
        return SimulatedGpu(seed, lambda draw: 1 + draw.gauss(0, 0.003), SLOWNESS[slowness])

    interleaved = sequential = 0
    for seed in range(60):
        together = gpu(seed).measure(FIXED, a=1e-4, b=1e-4)
        interleaved += not overlap(together["a"], together["b"])
        one = gpu(seed)
        apart = [one.measure(FIXED, a=1e-4)["a"], one.measure(FIXED, b=1e-4)["b"]]
        sequential += not overlap(*apart)
    assert interleaved <= 4 and sequential >= 50


def test_each_noise_stops_for_its_own_reason() -> None:
    def reasons(noise: Noise, slowness: Callable[[float], float] = lambda now_s: 1.0) -> set[str]:
        options = TimingOptions(warmup_s=0, max_samples=400)
        return {SimulatedGpu(s, noise, slowness).measure(options, a=1e-4)["a"].stop_reason for s in range(10)}

    assert reasons(lambda draw: 1 + draw.gauss(0, 0.001)) == {"target"}
    assert reasons(lambda draw: draw.choice((1.0, 1.3)) + draw.gauss(0, 0.001)) == {"stable"}
    assert reasons(lambda draw: 1.0, lambda now_s: 1 + 3 * now_s) == {"stable"}, "no number of samples narrows a drift"
    quick = TimingOptions(warmup_s=0, budget_s=0.02, target=0)
    assert SimulatedGpu(1, NOISES["normal"]).measure(quick, a=1e-4)["a"].stop_reason == "budget"


def test_a_throttled_stretch_leaves_the_median_alone() -> None:
    throttling = SimulatedGpu(3, lambda draw: 1.0, lambda now_s: 1.6 if 0.015 < now_s < 0.03 else 1.0)
    found = throttling.measure(FIXED, a=1e-4)["a"]
    assert found.throttled and found.median_s == 1e-4 and max(found.samples_s) == 1e-4
