"""The measuring loop on a clock made of numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.timing import DeviceState, Measurement, Sample, TimingOptions, Warn, measure

FLOOR = 2e-6


class FakeClock:
    """Says what it is told; time passes only when it samples."""

    timer = "fake"

    def __init__(self, states: Iterator[DeviceState] | None = None, overhead_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.overhead_s = overhead_s
        self.held: list[bool] = []
        self.order: list[str] = []
        self._states = states or repeat(DeviceState())
        self._next: tuple[str, float, bool] = ("", 0.0, True)

    def contender(self, name: str, times: Iterator[float], waits: bool = False) -> Callable[[], None]:
        """A callable that takes the next of these times; `waits` marks one that cannot be held."""

        def launch() -> None:
            self._next = (name, next(times), waits)

        return launch

    def sample(self, launch: Callable[[], None], hold: bool = True) -> Sample:
        launch()
        name, seconds, waits = self._next
        self.order.append(name)
        self.held.append(hold)
        self.now_s += seconds + self.overhead_s
        return Sample(seconds, hold and not waits)

    def device_state(self) -> DeviceState:
        return next(self._states)

    def launch_floor(self) -> float:
        return FLOOR

    def now(self) -> float:
        return self.now_s


def noise(middle: float, spread: float, seed: int = 0) -> Iterator[float]:
    """Normal times."""
    generator = random.Random(seed)
    while True:
        yield max(1e-7, generator.gauss(middle, spread))


def run(times: Iterator[float], options: TimingOptions | None = None, clock: FakeClock | None = None) -> Measurement:
    """Measure one contender."""
    clock = clock or FakeClock()
    return measure(clock, {"x": clock.contender("x", times)}, options, now=clock.now)["x"]


QUICK = TimingOptions(warmup_runs=2, warmup_s=0.0)
WARMUP = 3
"""Runs of QUICK's warm-up: two, and the one that tries to hold."""


def test_steady_times_stop_at_the_minimum() -> None:
    found = run(noise(1e-3, 1e-7))
    assert (found.stop_reason, len(found.samples_s), found.warnings) == ("target", 10, ())
    assert found.low_s <= found.median_s <= found.high_s
    assert found.quartiles_s[0] <= found.median_s <= found.quartiles_s[1]
    assert found.timer == "fake, stream held" and found.floor_s == FLOOR and found.mode == "cold"


def test_noise_is_averaged_out_until_the_target_is_met() -> None:
    found = run(noise(1e-3, 2e-5))
    assert found.stop_reason == "target" and 10 < len(found.samples_s) < 200
    assert (found.high_s - found.low_s) / 2 / found.median_s <= 0.005


def test_heavy_tails_do_not_hurt_the_median() -> None:
    generator = random.Random(5)
    found = run(1e-3 * (1 + 1e-4 * generator.random() + (5 if generator.random() < 0.1 else 0)) for _ in repeat(0))
    assert found.stop_reason == "target" and found.median_s == pytest.approx(1e-3, rel=1e-3)


def test_two_modes_are_noisy_and_run_to_the_limit() -> None:
    generator = random.Random(1)
    found = run((generator.choice((1e-3, 1.3e-3)) for _ in repeat(0)), TimingOptions(max_samples=50))
    assert (found.stop_reason, len(found.samples_s)) == ("max_samples", 50)
    assert Warn.NOISY in found.warnings


def test_budget_stops_a_slow_case_with_three_samples() -> None:
    found = run(noise(2.0, 1e-4))
    assert (found.stop_reason, len(found.samples_s)) == ("budget", 3)
    assert Warn.FEW_SAMPLES in found.warnings and found.coverage == pytest.approx(0.75)
    assert found.warmup_runs == 3, "two that pass the budget, and the one that tries to hold"


def test_each_has_its_own_budget() -> None:
    clock = FakeClock()
    launches = {
        "slow": clock.contender("slow", noise(0.4, 0.1)),
        "fast": clock.contender("fast", noise(1e-4, 1e-5)),
    }
    options = TimingOptions(warmup_runs=2, warmup_s=0, target=0)
    found = measure(clock, launches, options, now=clock.now)
    assert found["slow"].stop_reason == "budget" and len(found["slow"].samples_s) == 3
    assert found["fast"].stop_reason == "max_samples" and len(found["fast"].samples_s) == 200


def test_drift_is_named() -> None:
    found = run((1e-3 * (1 + i / 2000) for i in range(1000)), TimingOptions(target=1e-9, max_samples=100))
    assert Warn.CLOCK_DRIFT in found.warnings


def test_a_step_is_named() -> None:
    times = iter([*[1e-3] * (WARMUP + 20), *[1.05e-3] * 20])
    found = run(times, TimingOptions(warmup_runs=2, warmup_s=0, target=-1.0, max_samples=40))
    assert Warn.CLOCK_DRIFT in found.warnings


def test_noise_alone_is_no_drift() -> None:
    options = TimingOptions(target=0.0, max_samples=60)
    named = sum(Warn.CLOCK_DRIFT in run(noise(1e-3, 3e-5, seed), options).warnings for seed in range(200))
    assert named <= 2


def test_clock_change_and_throttling_come_from_the_device() -> None:
    before = DeviceState(sm_clock_hz=1.98e9, throttle=("gpu_idle",))
    after = DeviceState(sm_clock_hz=1.5e9, power_w=700.0, throttle=("sw_power_cap",))
    found = run(noise(1e-3, 1e-7), QUICK, FakeClock(iter([before, after])))
    assert found.warnings == (Warn.CLOCK_DRIFT, Warn.THROTTLED)
    assert found.before["sm_clock_hz"] == 1.98e9 and found.after["power_w"] == 700.0
    idle = run(noise(1e-3, 1e-7), QUICK, FakeClock(iter([before, before])))
    assert idle.warnings == ()


def test_too_short_to_time() -> None:
    assert run(noise(4.9 * FLOOR, 1e-10)).warnings == (Warn.TOO_SHORT,)
    assert run(noise(5.1 * FLOOR, 1e-10)).warnings == ()


def test_every_warning_has_advice() -> None:
    assert all((len(warning.advice) > 20 and ";" in warning.advice) or warning is Warn.NOT_HELD for warning in Warn)


def test_all_samples_are_kept_and_streamed_in_order() -> None:
    clock = FakeClock()
    streamed: list[tuple[str, float]] = []
    launches = {name: clock.contender(name, noise(1e-3, 1e-4, seed)) for seed, name in enumerate("abc")}
    found = measure(clock, launches, on_sample=lambda key, s: streamed.append((key, s)), now=clock.now)
    for name in "abc":
        assert tuple(s for key, s in streamed if key == name) == found[name].samples_s
    assert list(found) == ["a", "b", "c"]


def test_whoever_hangs_was_announced() -> None:
    clock = FakeClock()
    started: list[str] = []

    def dies() -> None:
        if len(started) > 2:
            raise KeyboardInterrupt

    launches = {"good": clock.contender("good", noise(1e-3, 1e-4)), "bad": dies}
    with pytest.raises(KeyboardInterrupt):
        measure(clock, launches, QUICK, on_start=started.append, now=clock.now)
    assert started[:2] == ["good", "bad"] and started[-1] == "bad"


def test_rounds_are_interleaved_in_random_order() -> None:
    clock = FakeClock()
    launches = {name: clock.contender(name, noise(1e-3, 1e-4, seed)) for seed, name in enumerate("abcd")}
    measure(clock, launches, TimingOptions(warmup_runs=2, warmup_s=0, target=0, max_samples=60), now=clock.now)
    rounds = [tuple(clock.order[i : i + 4]) for i in range(4 * WARMUP, len(clock.order), 4)]
    assert len(rounds) == 60 and all(sorted(r) == list("abcd") for r in rounds)
    assert len(set(rounds)) > 15, "24 orders are possible"
    for place in range(4):
        assert {r[place] for r in rounds} == set("abcd"), "everyone comes at every place"


def test_a_common_drift_hits_all_alike() -> None:
    clock = FakeClock()

    def slower(base: float) -> Iterator[float]:
        while True:
            yield base * (1 + 10 * clock.now_s)

    launches = {name: clock.contender(name, slower(base)) for name, base in (("a", 1e-3), ("b", 1.01e-3))}
    options = TimingOptions(target=0, max_samples=40)
    found = measure(clock, launches, options, now=clock.now)
    assert found["b"].median_s / found["a"].median_s == pytest.approx(1.01, rel=0.01)


def test_seed_decides_the_order() -> None:
    def order(seed: int) -> list[str]:
        clock = FakeClock()
        launches = {name: clock.contender(name, noise(1e-3, 1e-4, i)) for i, name in enumerate("abc")}
        measure(clock, launches, TimingOptions(seed=seed), now=clock.now)
        return clock.order

    assert order(1) == order(1) != order(2)


def test_warm_up_is_long_enough_and_first_unheld() -> None:
    clock = FakeClock()
    found = run(noise(1e-3, 1e-7), TimingOptions(warmup_s=0.0105), clock)
    assert found.warmup_runs == 12, "eleven of 1 ms, and the one that tries to hold"
    assert not any(clock.held[:11]) and all(clock.held[11:])


def test_a_callable_that_waits_is_found_out_before_its_first_sample() -> None:
    clock = FakeClock()
    launches = {
        "waits": clock.contender("waits", noise(1e-3, 1e-7), waits=True),
        "plain": clock.contender("plain", noise(1e-3, 1e-7)),
    }
    found = measure(clock, launches, QUICK, now=clock.now)
    assert found["waits"].timer == "fake, stream not held" and found["waits"].warnings == (Warn.NOT_HELD,)
    assert found["plain"].timer == "fake, stream held" and found["plain"].warnings == ()
    assert sum(clock.held[i] for i, name in enumerate(clock.order) if name == "waits") == 1


def test_a_callable_known_to_wait_is_never_held() -> None:
    clock = FakeClock()
    measure(clock, {"w": clock.contender("w", noise(1e-3, 1e-7), waits=True)}, QUICK, unheld={"w"}, now=clock.now)
    assert not any(clock.held)


def test_nothing_to_measure() -> None:
    assert measure(FakeClock(), {}) == {}


@given(
    samples=st.lists(st.floats(1e-7, 10), min_size=1, max_size=20).map(tuple),
    warnings=st.lists(st.sampled_from(list(Warn)), unique=True).map(tuple),
    throttle=st.sampled_from([None, (), ("sw_power_cap",)]),
)
def test_json_round_trip(
    samples: tuple[float, ...], warnings: tuple[Warn, ...], throttle: tuple[str, ...] | None
) -> None:
    state = {"sm_clock_hz": 1e9, "power_w": None, "throttle": throttle}
    found = Measurement(
        "cold", "fake", samples, 1.0, 1.0, 1.0, (1.0, 2.0), 0.9, "target", 3, state, state, FLOOR, warnings
    )
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found
