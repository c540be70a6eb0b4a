"""The measuring loop on a clock made of numbers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.records import from_json, to_json
from opbench.timing.clock import DeviceState, Sample
from opbench.timing.measurement import Measurement, TimingWarning
from opbench.timing.sampling import TimingOptions, measure
from opbench.timing.stopping import MAX_TOTAL_WAIT_S

FLOOR, OFFSET = 2e-6, 1.5e-6


class FakeClock:
    """Says what it is told; time passes only when it samples."""

    timer = "fake"

    def __init__(self, states: Iterator[DeviceState] | None = None, overhead_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.overhead_s = overhead_s
        self.stream_held: list[bool] = []
        self.order: list[str] = []
        self._states = states or repeat(DeviceState())
        self._next: tuple[str, float, bool, float | None] = ("", 0.0, True, None)

    def candidate(
        self, name: str, times: Iterator[float], waits: bool = False, clocks: Iterator[float | None] | None = None
    ) -> Callable[[], None]:
        """A callable that takes the next of these times; `waits` marks one that cannot be held."""

        def launch() -> None:
            self._next = (name, next(times), waits, next(clocks) if clocks else None)

        return launch

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        name, seconds, waits, sm_clock_hz = self._next
        self.order.append(name)
        self.stream_held.append(hold_stream)
        self.now_s += seconds + self.overhead_s
        return Sample(seconds, hold_stream and not waits, sm_clock_hz)

    def device_state(self) -> DeviceState:
        return next(self._states)

    def empty_kernel_s(self) -> float:
        return FLOOR

    def timing_offset_s(self) -> float | None:
        return OFFSET

    def now(self) -> float:
        return self.now_s


def noise(middle: float, spread: float, seed: int = 0) -> Iterator[float]:
    """Normal times."""
    generator = random.Random(seed)
    while True:
        yield max(1e-7, generator.gauss(middle, spread))


def run(times: Iterator[float], options: TimingOptions | None = None, clock: FakeClock | None = None) -> Measurement:
    """Measure one candidate."""
    clock = clock or FakeClock()
    return measure(clock, {"x": clock.candidate("x", times)}, options, now_s=clock.now)["x"]


QUICK = TimingOptions(warmup_runs=2, warmup_s=0.0)
WARMUP = 7
"""Runs of QUICK's warm-up: six to see that it has settled, and the one that tries to hold."""


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
    assert TimingWarning.NOISY in found.warnings


def test_budget_stops_a_slow_case_with_three_samples() -> None:
    found = run(noise(2.0, 1e-4))
    assert (found.stop_reason, len(found.samples_s)) == ("budget", 3)
    assert TimingWarning.FEW_SAMPLES in found.warnings and found.coverage == pytest.approx(0.75)
    assert found.warmup_runs == 3, "two that pass the budget, and the one that tries to hold"


def test_each_has_its_own_budget() -> None:
    clock = FakeClock()
    launches = {
        "slow": clock.candidate("slow", noise(0.4, 0.1)),
        "fast": clock.candidate("fast", noise(1e-4, 1e-5)),
    }
    options = TimingOptions(warmup_runs=2, warmup_s=0, target=0)
    found = measure(clock, launches, options, now_s=clock.now)
    assert found["slow"].stop_reason == "budget" and len(found["slow"].samples_s) == 3
    assert found["fast"].stop_reason == "max_samples" and len(found["fast"].samples_s) == 200


def test_a_chosen_number_of_samples_is_taken_although_fewer_reach_the_target() -> None:
    options = TimingOptions(budget_s=0.3)
    chosen = options.with_samples(1000)
    steady = run(noise(1e-3, 1e-7), chosen)
    assert len(steady.samples_s) == 1000 and len(run(noise(1e-3, 1e-7), options).samples_s) == 10
    noisy = [run(noise(1e-3, 3e-4), each) for each in (options, chosen)]
    assert [len(each.samples_s) for each in noisy] == [200, 1000]
    assert noisy[1].high_s - noisy[1].low_s < noisy[0].high_s - noisy[0].low_s
    assert options.with_samples(50).budget_s == options.budget_s, "fewer samples do not shorten the time of a slow case"


def test_drift_is_named() -> None:
    found = run((1e-3 * (1 + i / 2000) for i in range(1000)), TimingOptions(target=1e-9, max_samples=100))
    assert TimingWarning.CLOCK_DRIFT in found.warnings


def test_a_step_is_named() -> None:
    times = iter([*[1e-3] * (WARMUP + 20), *[1.05e-3] * 20])
    found = run(times, TimingOptions(warmup_runs=2, warmup_s=0, target=-1.0, max_samples=40))
    assert TimingWarning.CLOCK_DRIFT in found.warnings


def test_noise_alone_is_no_drift() -> None:
    options = TimingOptions(target=0.0, max_samples=60)
    named = sum(TimingWarning.CLOCK_DRIFT in run(noise(1e-3, 3e-5, seed), options).warnings for seed in range(200))
    assert named <= 2


def test_clock_change_and_throttling_come_from_the_device() -> None:
    before = DeviceState(sm_clock_hz=1.98e9, throttle=("gpu_idle",))
    after = DeviceState(sm_clock_hz=1.5e9, power_w=700.0, throttle=("sw_power_cap",))
    found = run(noise(1e-3, 1e-7), QUICK, FakeClock(iter([before, after])))
    assert found.warnings == (TimingWarning.CLOCK_DRIFT, TimingWarning.THROTTLED)
    assert found.before.sm_clock_hz == 1.98e9 and found.after.power_w == 700.0
    idle = run(noise(1e-3, 1e-7), QUICK, FakeClock(iter([before, before])))
    assert idle.warnings == ()


def test_too_short_to_time() -> None:
    assert run(noise(4.9 * FLOOR, 1e-10)).warnings == (TimingWarning.TOO_SHORT,)
    assert run(noise(5.1 * FLOOR, 1e-10)).warnings == ()


def test_every_warning_has_advice() -> None:
    assert all(
        (len(warning.advice) > 20 and ";" in warning.advice) or warning is TimingWarning.NOT_HELD
        for warning in TimingWarning
    )


def test_all_samples_are_kept_and_streamed_in_order() -> None:
    clock = FakeClock()
    streamed: list[tuple[str, float]] = []
    launches = {name: clock.candidate(name, noise(1e-3, 1e-4, seed)) for seed, name in enumerate("abc")}
    found = measure(clock, launches, on_sample=lambda key, s: streamed.append((key, s)), now_s=clock.now)
    for name in "abc":
        assert tuple(s for key, s in streamed if key == name) == found[name].samples_s
    assert list(found) == ["a", "b", "c"]


def test_whoever_hangs_was_announced() -> None:
    clock = FakeClock()
    started: list[str] = []

    def dies() -> None:
        if len(started) > 2:
            raise KeyboardInterrupt

    launches = {"good": clock.candidate("good", noise(1e-3, 1e-4)), "bad": dies}
    with pytest.raises(KeyboardInterrupt):
        measure(clock, launches, QUICK, on_start=started.append, now_s=clock.now)
    assert started[:2] == ["good", "bad"] and started[-1] == "bad"


def test_rounds_are_interleaved_in_random_order() -> None:
    clock = FakeClock()
    launches = {name: clock.candidate(name, noise(1e-3, 1e-6, seed)) for seed, name in enumerate("abcd")}
    measure(clock, launches, TimingOptions(warmup_runs=2, warmup_s=0, target=0, max_samples=60), now_s=clock.now)
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

    launches = {name: clock.candidate(name, slower(base)) for name, base in (("a", 1e-3), ("b", 1.01e-3))}
    options = TimingOptions(target=0, max_samples=40)
    found = measure(clock, launches, options, now_s=clock.now)
    assert found["b"].median_s / found["a"].median_s == pytest.approx(1.01, rel=0.01)


def test_seed_decides_the_order() -> None:
    def order(seed: int) -> list[str]:
        clock = FakeClock()
        launches = {name: clock.candidate(name, noise(1e-3, 1e-4, i)) for i, name in enumerate("abc")}
        measure(clock, launches, TimingOptions(seed=seed), now_s=clock.now)
        return clock.order

    assert order(1) == order(1) != order(2)


def test_warm_up_is_long_enough_and_first_unheld() -> None:
    clock = FakeClock()
    found = run(noise(1e-3, 1e-7), TimingOptions(warmup_s=0.0105), clock)
    assert found.warmup_runs == 12, "eleven of 1 ms, and the one that tries to hold"
    assert not any(clock.stream_held[:11]) and all(clock.stream_held[11:])


def test_a_callable_that_waits_is_found_out_before_its_first_sample() -> None:
    clock = FakeClock()
    launches = {
        "waits": clock.candidate("waits", noise(1e-3, 1e-7), waits=True),
        "plain": clock.candidate("plain", noise(1e-3, 1e-7)),
    }
    found = measure(clock, launches, QUICK, now_s=clock.now)
    assert found["waits"].timer == "fake, stream not held" and found["waits"].warnings == (TimingWarning.NOT_HELD,)
    assert found["plain"].timer == "fake, stream held" and found["plain"].warnings == ()
    assert sum(clock.stream_held[i] for i, name in enumerate(clock.order) if name == "waits") == 1


def test_a_callable_known_to_wait_is_never_held() -> None:
    clock = FakeClock()
    measure(
        clock,
        {"w": clock.candidate("w", noise(1e-3, 1e-7), waits=True)},
        QUICK,
        not_holding_stream={"w"},
        now_s=clock.now,
    )
    assert not any(clock.stream_held)


def test_nothing_to_measure() -> None:
    assert measure(FakeClock(), {}) == {}


# Clocks, throttling, warm-up --------------------------------------------------------------------------------------


def timed_at(hertz: Iterator[float | None], cycles: float = 1e6) -> tuple[FakeClock, Callable[[], None], list[float]]:
    """Return a fake clock, a candidate of so many cycles that reports its clock, and the list of requested waits."""
    clock, waits = FakeClock(), []
    ahead, again = itertools.tee(hertz)
    times = (cycles / (hz or 1e9) for hz in ahead)
    return clock, clock.candidate("x", times, clocks=again), waits


def test_each_sample_has_its_clock_and_the_kernel_its_own_time() -> None:
    clock, launch, waits = timed_at(repeat(2e9))
    found = measure(clock, {"x": launch}, QUICK, now_s=clock.now, sleep=waits.append)["x"]
    assert found.clocks_hz == (2e9,) * 10 and found.throttled == () and waits == []
    assert found.offset_s == OFFSET and found.kernel_s == pytest.approx(5e-4 - OFFSET)
    assert run(noise(1e-3, 1e-7)).clocks_hz == ()
    assert run(repeat(OFFSET / 2)).kernel_s == 0.0, "no kernel takes less than no time"
    clock.timing_offset_s = lambda: None  # type: ignore[method-assign]
    assert measure(clock, {"x": launch}, QUICK, now_s=clock.now)["x"].kernel_s is None


def test_throttled_samples_are_set_aside_and_waited_for() -> None:
    slow_from, slow_to = WARMUP + 4, WARMUP + 9
    clock, launch, waits = timed_at(1.4e9 if slow_from <= i < slow_to else 2e9 for i in itertools.count())
    found = measure(clock, {"x": launch}, QUICK, now_s=clock.now, sleep=waits.append)["x"]
    assert found.throttled == ((4, 1e6 / 1.4e9, 1.4e9),) * 5, "kept, with where it happened"
    assert found.median_s == 5e-4 and len(found.samples_s) == 10 and found.warnings == (TimingWarning.THROTTLED,)
    assert waits == sorted(waits) and waits[0] == waits[1] == 0.05 and waits[2] > 0.05


def test_a_clock_three_quarters_high_is_not_throttled() -> None:
    clock, launch, waits = timed_at(1.51e9 if i > WARMUP + 3 else 2e9 for i in itertools.count())
    found = measure(clock, {"x": launch}, QUICK, now_s=clock.now, sleep=waits.append)["x"]
    assert (found.throttled, waits) == ((), [])


def test_a_gpu_that_never_recovers_is_measured_all_the_same() -> None:
    clock, launch, waits = timed_at(1e9 if i > WARMUP + 3 else 2e9 for i in itertools.count())
    found = measure(
        clock, {"x": launch}, replace(QUICK, max_samples=30, target=-1.0), now_s=clock.now, sleep=waits.append
    )["x"]
    assert sum(waits) == pytest.approx(MAX_TOTAL_WAIT_S) and max(waits) <= 0.5
    assert (
        len(found.throttled) == len(waits) and len(found.samples_s) == 30 and TimingWarning.THROTTLED in found.warnings
    )


def test_one_odd_reading_of_the_clock_throttles_nothing() -> None:
    clock, launch, waits = timed_at(9e9 if i == 3 else None if i % 5 == 4 else 2e9 for i in itertools.count())
    found = measure(clock, {"x": launch}, QUICK, now_s=clock.now, sleep=waits.append)["x"]
    assert waits == [] and set(found.clocks_hz) == {2e9, None}


def test_warm_up_lasts_until_times_have_settled() -> None:
    falling = (1e-3 * (1 + 2 * 0.9**i) for i in itertools.count())
    found = run(falling, QUICK)
    assert found.settled and 15 < found.warmup_runs < 60
    assert found.samples_s[0] == pytest.approx(1e-3, rel=0.2), "the first half of the fall is not in it"


def test_warm_up_lasts_until_the_clock_has_settled() -> None:
    rising = (min(2e9, 1e9 + 5e7 * i) for i in itertools.count())
    clock = FakeClock()
    launch = clock.candidate("x", repeat(1e-3), clocks=rising)
    found = measure(clock, {"x": launch}, QUICK, now_s=clock.now)["x"]
    assert found.settled and found.warmup_runs > 20 and set(found.clocks_hz) == {2e9}


def test_what_never_settles_is_warmed_up_for_no_longer_than_the_budget() -> None:
    found = run((1e-3 * 1.02**i for i in itertools.count()), TimingOptions(warmup_s=0, budget_s=0.5))
    assert found.settled is False and found.warmup_runs < 200


def test_short_kernels_whose_spans_never_agree_settle_too() -> None:
    generator = random.Random(3)
    runs = [run((32e-9 * generator.randint(90, 110) for _ in repeat(0)), QUICK).warmup_runs for _ in range(50)]
    assert max(runs) < 60 and sorted(runs)[25] < 15


def test_samples_that_no_longer_help_end_the_measurement() -> None:
    modes = (1e-3 if i // 7 % 2 else 1.3e-3 for i in itertools.count())
    found = run(modes, TimingOptions(max_samples=2000, budget_s=60))
    assert found.stop_reason == "stable" and len(found.samples_s) < 150 and TimingWarning.NOISY in found.warnings


def test_noise_that_is_averaged_out_is_not_called_stable_early() -> None:
    options = TimingOptions(max_samples=200, budget_s=60, target=0)
    stopped = [run(noise(1e-3, 1e-4, seed), options).stop_reason for seed in range(60)]
    assert stopped.count("stable") <= 12, "the interval still shrinks with the root of their number"


@given(
    samples=st.lists(st.floats(1e-7, 10), min_size=1, max_size=20).map(tuple),
    warnings=st.lists(st.sampled_from(list(TimingWarning)), unique=True).map(tuple),
    throttle=st.sampled_from([None, (), ("sw_power_cap",)]),
    clocks=st.sampled_from([(), (None, 2e9)]),
    throttled=st.sampled_from([(), ((3, 1e-3, 1e9), (3, 2e-3, 1e9))]),
)
def test_json_round_trip(
    samples: tuple[float, ...],
    warnings: tuple[TimingWarning, ...],
    throttle: tuple[str, ...] | None,
    clocks: tuple[float | None, ...],
    throttled: tuple[tuple[int, float, float], ...],
) -> None:
    state = DeviceState(sm_clock_hz=1e9, throttle=throttle)
    found = Measurement(
        "cold", "fake", samples, 1.0, 1.0, 1.0, (1.0, 2.0), 0.9, "target", 3, state, state, FLOOR, warnings
    )
    found = replace(found, clocks_hz=clocks, throttled=throttled, kernel_s=0.5, offset_s=0.5, processes=(0, 1))
    record = json.loads(json.dumps(to_json(found)))
    assert from_json(Measurement, record) == found
    for key in ("settled", "offset_s", "kernel_s", "clocks_hz", "throttled", "processes"):
        del record[key]
    assert from_json(Measurement, record).clocks_hz == (), "as runs measured before these fields"


def test_a_case_under_load_runs_without_a_break_before_it_is_sampled_and_nothing_is_set_aside() -> None:
    launched: list[str] = []

    class Falling(FakeClock):
        """A GPU whose clock falls to two thirds within a second of work, one launch a millisecond."""

        def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
            before = len(launched)
            launch()
            count = len(launched) - before
            clock_hz = 2e9 if self.now_s < 1 else 1.3e9
            seconds = count * 1e-3 * 2e9 / clock_hz
            self.now_s += seconds
            self.stream_held.append(hold_stream)
            return Sample(seconds, hold_stream, clock_hz)

    def measured(load_s: float, mode: str = "cold") -> Measurement:
        clock, waits = Falling(), list[float]()
        launched.clear()
        options = replace(QUICK, load_s=load_s, mode=mode)
        found = measure(clock, {"x": lambda: launched.append("x")}, options, now_s=clock.now, sleep=waits.append)["x"]
        assert waits == []
        return found

    burst, sustained = measured(0.0), measured(2.0)
    assert burst.median_s == 1e-3 and len(launched) > 1300 and sustained.median_s == pytest.approx(1e-3 * 2 / 1.3)
    assert sustained.throttled == () and len(launched) - 1300 > 10 * 20, "20 ms of launches before each sample, too"
    assert measured(2.0, "graph").median_s == 1e-3 and len(launched) < 50
