"""Decide from numbers when a warm-up is stable, when samples are enough, and which had a throttled clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opbench.timing import stats

SETTLED_RUNS = 3
SETTLED_CHANGE = 0.03
"""A warm-up is stable when the medians of its last three runs and of the three before differ by at most this share."""

STABLE_SAMPLES, STABLE_EVERY = 64, 32
STABLE_GAIN = 0.05
"""If samples are independent, the half-width of a median's interval shrinks by 29 % while their number doubles. If it
shrinks by less than 5 %, more samples are not worth their time. NVBench's `stdrel` stops similarly: with at least 64
values of the noise, once they vary by less than 5 % of their mean."""

THROTTLED_SHARE = 0.75
"""A sample below this share of the highest clock does not count (the same default as NVBench)."""
WAIT_S, LONGEST_WAIT_S, MAX_TOTAL_WAIT_S = 0.05, 0.5, 2.0
"""Seconds to wait for a throttled GPU: the first time, at most at once, and in total."""


def is_warmed_up(times_s: Sequence[float], clocks_hz: Sequence[float | None]) -> bool:
    """Return whether the last warm-up runs took as long, and had the same clock, as the runs before them.

    Medians are compared, so that a kernel of only a few timer ticks, whose times always vary, also becomes stable.
    """
    if len(times_s) < 2 * SETTLED_RUNS:
        return False
    known_hz = [clock for clock in clocks_hz if clock]
    return _level(times_s) and (len(known_hz) < 2 * SETTLED_RUNS or _level(known_hz))


def _level(values: Sequence[float]) -> bool:
    earlier, later = values[-2 * SETTLED_RUNS : -SETTLED_RUNS], values[-SETTLED_RUNS:]
    return abs(stats.median(later) - stats.median(earlier)) <= SETTLED_CHANGE * stats.median(earlier)


def half_width(samples: Sequence[float], interval: stats.Interval) -> float:
    """Return half the interval's width divided by the median."""
    median_s = stats.median(samples)
    return (interval.high - interval.low) / 2 / median_s if median_s > 0 else 0.0


def is_interval_stable(half_widths: Sequence[float]) -> bool:
    """Return whether more samples no longer narrow the interval, for example with two modes or bursts of noise."""
    n = len(half_widths)
    if n < STABLE_SAMPLES or n % STABLE_EVERY:
        return False
    earlier, later = half_widths[3 * n // 8 : n // 2], half_widths[3 * n // 4 :]
    return stats.median(later) > (1 - STABLE_GAIN) * stats.median(earlier)


@dataclass
class ThrottleGuard:
    """Detects samples at a throttled clock and gives the GPU time to recover, up to a limit."""

    sleep: Callable[[float], None]
    highest_hz: float = 0.0
    """The highest median of three consecutive readings. The device's maximum is not used, as clocks may be locked."""
    waited_s: float = 0.0
    _delay_s: float = 0.0
    _throttled_in_a_row: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=3))

    def note(self, clock_hz: float | None) -> None:
        """Update the highest clock from a reading; a single outlier does not count."""
        if clock_hz:
            self._recent.append(clock_hz)
            if len(self._recent) == 3:
                self.highest_hz = max(self.highest_hz, stats.median(list(self._recent)))

    def throttled(self, clock_hz: float | None) -> bool:
        """Note a clock reading; return whether its sample must be discarded because the GPU is throttled.

        False once the waits for recovery add up to MAX_TOTAL_WAIT_S, and for an unknown clock (None).
        """
        self.note(clock_hz)
        return self.is_throttled(clock_hz) and self.waited_s < MAX_TOTAL_WAIT_S

    def is_throttled(self, clock_hz: float | None) -> bool:
        """Return whether this clock rate is far below the highest one seen, so that the GPU is throttled."""
        return bool(clock_hz) and (clock_hz or 0.0) < THROTTLED_SHARE * self.highest_hz

    def wait(self) -> None:
        """Wait for the GPU to recover; from the third consecutive time on, each wait is longer (as in NVBench)."""
        self._throttled_in_a_row += 1
        if self._throttled_in_a_row > 2:
            self._delay_s = min(LONGEST_WAIT_S, 2.5 * self._delay_s)
        self._delay_s = min(max(WAIT_S, self._delay_s), MAX_TOTAL_WAIT_S - self.waited_s)
        self.sleep(self._delay_s)
        self.waited_s += self._delay_s

    def recovered(self) -> None:
        """Reset the waits after a sample at a good clock."""
        self._throttled_in_a_row, self._delay_s = 0, 0.0
