"""Times of callables: interleaved samples, a stopping rule on the median's interval, and warnings.

The logic only uses a `Clock`: it needs no GPU, and tests use a fake clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from opbench.timing import stats
from opbench.timing.clock import Clock, DeviceState, Launch, LaunchSource, Sample
from opbench.timing.measurement import Measurement, TimingWarning, kernel_time
from opbench.timing.phases import timed_phase
from opbench.timing.stopping import MAX_TOTAL_WAIT_S, ThrottleGuard, half_width, is_interval_stable, is_warmed_up

NOISY_HALF_WIDTH = 0.02
MIN_DRIFT = 0.01
MIN_CLOCK_CHANGE = 0.03
SHORT_FACTOR = 5.0
"""A time below this multiple of an empty launch's time is mostly launch overhead."""

HARMLESS_THROTTLE = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"})

BUSY_S, LOAD_BATCH_S = 0.02, 0.1
"""For a case measured under load: duration of the launches before each sample, and of a batch before the first."""
MAX_LAUNCHES = 1000
"""Most launches in a batch: a stream queues about a thousand launches before the host blocks."""


@dataclass(frozen=True)
class TimingOptions:
    """When a measurement stops, and how it warms up."""

    mode: str = "cold"
    """One of `opbench.timing.clock.TIMING_MODES`."""
    warmup_runs: int = 3
    warmup_s: float = 0.025
    min_samples: int = 10
    max_samples: int = 200
    budget_s: float = 1.0
    """Wall time of one case's samples."""
    target: float = 0.005
    """Relative half-width of the median's 95 % interval at which a case is done."""
    seed: int = 0
    load_s: float = 0.0
    """For measurements under load: how long a case runs without a break before its warm-up, until power and clocks are
    stable. The case then also runs briefly before every sample to keep them stable. 0 for no load."""

    def with_samples(self, count: int) -> TimingOptions:
        """Return options that take `count` samples of each case; the budget of a case grows in proportion."""
        budget_s = self.budget_s * max(1.0, count / self.max_samples) if self.max_samples else self.budget_s
        return replace(self, min_samples=count, max_samples=count, budget_s=budget_s)


@dataclass(frozen=True)
class _ClockProperties:
    """Properties of the clock that stay constant during a measurement."""

    timer: str
    floor_s: float
    offset_s: float | None


@dataclass
class _Candidate:
    """The state of one callable during its measurement."""

    key: str
    launch: Launch
    hold_stream: bool
    launch_source: LaunchSource | None = None
    warmup_runs: int = 0
    settled: bool = False
    spent_s: float = 0.0
    load_launches: Launch | None = None
    """The launches that keep the device loaded before a sample; None without load."""
    samples: list[float] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)
    half_widths: list[float] = field(default_factory=list)
    throttled: list[tuple[int, float, float]] = field(default_factory=list)
    stop_reason: str = ""
    before: DeviceState = field(default_factory=DeviceState)
    after: DeviceState = field(default_factory=DeviceState)

    def next_launch(self) -> Launch:
        """Return the launch of the next sample, on renewed buffers where the candidate has a launch source."""
        return self.launch_source.next_launch() if self.launch_source else self.launch


def measure(
    clock: Clock,
    launches: Mapping[str, Launch],
    options: TimingOptions | None = None,
    *,
    not_holding_stream: Collection[str] = (),
    launch_sources: Mapping[str, LaunchSource] | None = None,
    on_start: Callable[[str], None] = lambda key: None,
    on_sample: Callable[[str, float], None] = lambda key, seconds: None,
    now_s: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Measurement]:
    """Measure callables in rounds of one sample each in random order, so that a drift affects all of them alike.

    `on_start` is called before anything that may hang, and `on_sample` after every sample, so that a process that dies
    loses no data. `not_holding_stream` names callables that wait for the device, so the clock must not block the stream
    for them; the warm-up detects others. `launch_sources` renew the buffers of a callable before each of its samples.
    """
    options = options or TimingOptions()
    if not launches:
        return {}
    order = random.Random(options.seed)
    readings = _ClockProperties(clock.timer, clock.empty_kernel_s(), clock.timing_offset_s())
    is_under_load = options.load_s > 0 and options.mode != "graph"  # a graph has no launches of its own to repeat
    # Under load a throttled clock is intended: all samples count, and there is no wait for the clock to recover.
    guard = ThrottleGuard(sleep, waited_s=MAX_TOTAL_WAIT_S if is_under_load else 0.0)
    candidates = [
        _Candidate(key, launch, key not in not_holding_stream, (launch_sources or {}).get(key))
        for key, launch in launches.items()
    ]
    with timed_phase("warm-up"):
        for candidate in candidates:
            on_start(candidate.key)
            if is_under_load:
                candidate.load_launches = _load_device(clock, candidate.launch, options.load_s, now_s)
            _warm_up(clock, candidate, options, guard, now_s)
    running = list(candidates)
    with timed_phase("samples"):
        while running:
            order.shuffle(running)
            for candidate in running:
                on_start(candidate.key)
                if candidate.load_launches:
                    clock.sample(candidate.load_launches, hold_stream=False)
                _take_sample(clock, candidate, guard, now_s, on_sample)
                candidate.stop_reason = _stop_reason(candidate, options)
                if candidate.stop_reason:
                    candidate.after = _device_state(clock)
            running = [candidate for candidate in running if not candidate.stop_reason]
    return {candidate.key: _summary(readings, candidate, options, guard) for candidate in candidates}


def _take_sample(
    clock: Clock,
    candidate: _Candidate,
    guard: ThrottleGuard,
    now_s: Callable[[], float],
    on_sample: Callable[[str, float], None],
) -> None:
    """Take one sample; if the clock is throttled, the sample does not count and a wait outside the budget follows."""
    start_s = now_s()
    sample = clock.sample(candidate.next_launch(), hold_stream=candidate.hold_stream)
    candidate.spent_s += now_s() - start_s
    candidate.hold_stream = candidate.hold_stream and sample.stream_held
    on_sample(candidate.key, sample.seconds)
    if guard.throttled(sample.sm_clock_hz):
        candidate.throttled.append((len(candidate.samples), sample.seconds, sample.sm_clock_hz or 0.0))
        guard.wait()
        return
    guard.recovered()
    if candidate.launch_source:
        candidate.launch_source.after_sample()
    candidate.samples.append(sample.seconds)
    candidate.clocks.append(sample.sm_clock_hz)


def _warm_up(
    clock: Clock, candidate: _Candidate, options: TimingOptions, guard: ThrottleGuard, now_s: Callable[[], float]
) -> None:
    """Run until caches, lazily loaded code, times and clock are stable, for no longer than the budget.

    The first two runs are not queued behind a blocked stream: loading a kernel there would deadlock.
    """
    start_s = now_s()
    samples: list[Sample] = []
    while True:
        samples.append(clock.sample(candidate.next_launch(), hold_stream=False))
        guard.note(samples[-1].sm_clock_hz)
        spent_s = now_s() - start_s
        candidate.settled = is_warmed_up([s.seconds for s in samples[-8:]], [s.sm_clock_hz for s in samples[-8:]])
        is_long_enough = len(samples) >= options.warmup_runs and spent_s >= options.warmup_s and candidate.settled
        if len(samples) >= 2 and (is_long_enough or spent_s >= max(options.warmup_s, options.budget_s)):
            break
    if candidate.hold_stream:
        samples.append(clock.sample(candidate.next_launch(), hold_stream=True))
        candidate.hold_stream = samples[-1].stream_held
    candidate.warmup_runs = len(samples)
    candidate.before = _device_state(clock)


def _device_state(clock: Clock) -> DeviceState:
    with timed_phase("device state"):
        return clock.device_state()


def _load_device(clock: Clock, launch: Launch, load_s: float, now_s: Callable[[], float]) -> Launch:
    """Keep the device busy until its power and clocks are stable; return launches that keep it so before a sample."""
    start_s = now_s()
    launch_s = min(clock.sample(launch, hold_stream=False).seconds for _ in range(3))
    while now_s() - start_s < load_s:
        clock.sample(_repeated_launch(launch, launch_s, LOAD_BATCH_S), hold_stream=False)
    return _repeated_launch(launch, launch_s, BUSY_S)


def _repeated_launch(launch: Launch, launch_s: float, seconds: float) -> Launch:
    """Return a launch that repeats `launch` back to back for about `seconds`."""
    count = max(1, min(MAX_LAUNCHES, math.ceil(seconds / max(launch_s, 1e-9))))

    def launches() -> None:
        for _ in range(count):
            launch()

    return launches


def _stop_reason(candidate: _Candidate, options: TimingOptions) -> str:
    """Return why the measurement of a case ends, "" if it continues; even a slow case gets three samples."""
    n = len(candidate.samples)
    if n >= options.min_samples:
        interval = stats.median_interval(candidate.samples)
        candidate.half_widths.append(half_width(candidate.samples, interval))
        if interval.coverage >= 0.95 and candidate.half_widths[-1] <= options.target:
            return "target"
        if is_interval_stable(candidate.half_widths):
            return "stable"
    if n >= options.max_samples:
        return "max_samples"
    if n >= min(3, options.min_samples) and candidate.spent_s >= options.budget_s:
        return "budget"
    return ""


def _summary(
    readings: _ClockProperties, candidate: _Candidate, options: TimingOptions, guard: ThrottleGuard
) -> Measurement:
    """Return the measurement of a finished callable."""
    samples = candidate.samples
    interval = stats.median_interval(samples)
    return Measurement(
        mode=options.mode,
        timer=readings.timer + (", stream held" if candidate.hold_stream else ", stream not held"),
        samples_s=tuple(samples),
        median_s=stats.median(samples),
        low_s=interval.low,
        high_s=interval.high,
        quartiles_s=(stats.quantile(samples, 0.25), stats.quantile(samples, 0.75)),
        coverage=interval.coverage,
        stop_reason=candidate.stop_reason,
        warmup_runs=candidate.warmup_runs,
        before=candidate.before,
        after=candidate.after,
        floor_s=readings.floor_s,
        warnings=_warnings(candidate, interval, readings.floor_s, options, guard),
        settled=candidate.settled,
        offset_s=readings.offset_s,
        kernel_s=kernel_time(stats.median(samples), readings.offset_s),
        clocks_hz=tuple(candidate.clocks) if any(candidate.clocks) else (),
        throttled=tuple(candidate.throttled),
    )


def _warnings(
    candidate: _Candidate, interval: stats.Interval, floor_s: float, options: TimingOptions, guard: ThrottleGuard
) -> tuple[TimingWarning, ...]:
    """Return the warnings about a finished callable."""
    samples = candidate.samples
    throttle = {*(candidate.before.throttle or ()), *(candidate.after.throttle or ())}
    is_throttled = bool(candidate.throttled) or any(map(guard.is_throttled, candidate.clocks))
    conditions = {
        TimingWarning.NOISY: half_width(samples, interval) > NOISY_HALF_WIDTH,
        TimingWarning.TOO_SHORT: stats.median(samples) < SHORT_FACTOR * floor_s,
        TimingWarning.CLOCK_DRIFT: _has_drift(samples) or _clock_changed(candidate.before, candidate.after),
        TimingWarning.THROTTLED: bool(throttle - HARMLESS_THROTTLE) or is_throttled,
        TimingWarning.FEW_SAMPLES: len(samples) < options.min_samples or interval.coverage < 0.95,
        TimingWarning.NOT_HELD: not candidate.hold_stream,
    }
    return tuple(warning for warning, applies in conditions.items() if applies)


def _has_drift(samples: list[float]) -> bool:
    """Return whether the medians of the first and second half differ by more than 1 % and more than chance explains."""
    half_count = len(samples) // 2
    if half_count < 6:
        return False
    first_half, second_half = samples[:half_count], samples[-half_count:]
    # 99 % intervals: at 95 % two halves of the same distribution are disjoint too often over a suite of hundreds.
    first_interval, second_interval = stats.median_interval(first_half, 0.99), stats.median_interval(second_half, 0.99)
    are_disjoint = first_interval.high < second_interval.low or second_interval.high < first_interval.low
    return are_disjoint and abs(stats.median(second_half) / stats.median(first_half) - 1) > MIN_DRIFT


def _clock_changed(before: DeviceState, after: DeviceState) -> bool:
    """Return whether the SM clock differs between the start and the end of a measurement."""
    if not before.sm_clock_hz or not after.sm_clock_hz:
        return False
    return abs(after.sm_clock_hz / before.sm_clock_hz - 1) > MIN_CLOCK_CHANGE
