"""Host-side time of calls from Python until the device is done: interleaved samples, warm caches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opbench.timing import stats
from opbench.timing.clock import Launch, SecondsClock


@dataclass(frozen=True)
class HostOptions:
    """How many calls are timed, and for how long."""

    warmup_calls: int = 5
    samples: int = 100
    budget_s: float = 0.5
    """Time budget of each call; at least five samples are always taken."""
    seed: int = 0


MIN_SAMPLES = 5


@dataclass(frozen=True)
class HostTime:
    """Seconds from a call until the device has finished and control is back on the host."""

    median_s: float
    low_s: float
    high_s: float
    coverage: float
    """Probability that [low_s, high_s] covers the true median."""
    samples_s: tuple[float, ...]


def host_times(
    calls: Mapping[str, Launch],
    synchronize: Callable[[], object],
    options: HostOptions | None = None,
    now_s: SecondsClock = time.perf_counter,
) -> dict[str, HostTime]:
    """Time each call and the following synchronisation, in rounds of one sample each in random order.

    Each sample starts on an idle device, because `synchronize` has returned.
    """
    options = options or HostOptions()
    order = random.Random(options.seed)
    for call in calls.values():
        for _ in range(options.warmup_calls):
            call()
        synchronize()
    samples: dict[str, list[float]] = {key: [] for key in calls}
    running = list(calls)
    while running:
        order.shuffle(running)
        for key in running:
            start_s = now_s()
            calls[key]()
            synchronize()
            samples[key].append(now_s() - start_s)
        running = [key for key in running if not _done(samples[key], options)]
    return {key: _summary(samples[key]) for key in calls}


def _done(samples: list[float], options: HostOptions) -> bool:
    is_budget_spent = len(samples) >= MIN_SAMPLES and sum(samples) >= options.budget_s
    return is_budget_spent or len(samples) >= max(options.samples, MIN_SAMPLES)


def _summary(samples: list[float]) -> HostTime:
    interval = stats.median_interval(samples)
    return HostTime(stats.median(samples), interval.low, interval.high, interval.coverage, tuple(samples))
