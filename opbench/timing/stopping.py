"""When a warm-up has settled, when samples are enough, and which were taken at a throttled clock; numbers only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opbench.timing import stats

SETTLED_RUNS = 3
SETTLED = 0.03
"""A warm-up has settled when the medians of its last three runs and of the three before are this close."""

STABLE_SAMPLES, STABLE_EVERY = 64, 32
STABLE_GAIN = 0.05
"""The half-width of a median's interval shrinks by 29 % while samples double, if they are independent. If it shrinks by
less than 5 %, more of them are not worth their time. NVBench's `stdrel` gives up alike: from 64 values of the noise on,
now and then, once they vary by less than 5 % of their mean."""

THROTTLED_SHARE = 0.75
"""Of the highest clock: below it a sample is set aside (NVBench's default, too)."""
WAIT_S, LONGEST_WAIT_S, WAITED_S = 0.05, 0.5, 2.0
"""A throttled GPU is given so long at first, so long at most at once, and so long in all."""


def settled(spans_s: Sequence[float], clocks_hz: Sequence[float | None]) -> bool:
    """Whether the last runs of a warm-up took as long, and at the same clock, as those before them.

    Medians, so that a kernel of a few ticks of the timer, whose spans never agree, settles too.
    """
    if len(spans_s) < 2 * SETTLED_RUNS:
        return False
    known = [clock for clock in clocks_hz if clock]
    return _level(spans_s) and (len(known) < 2 * SETTLED_RUNS or _level(known))


def _level(values: Sequence[float]) -> bool:
    before, after = values[-2 * SETTLED_RUNS : -SETTLED_RUNS], values[-SETTLED_RUNS:]
    return abs(stats.median(after) - stats.median(before)) <= SETTLED * stats.median(before)


def half_width(samples: Sequence[float], interval: stats.Interval) -> float:
    """Half the interval's width over the median."""
    middle = stats.median(samples)
    return (interval.high - interval.low) / 2 / middle if middle > 0 else 0.0


def stabilised(half_widths: Sequence[float]) -> bool:
    """Whether further samples no longer narrow the interval: it spans two modes or a drift, or the noise has bursts."""
    n = len(half_widths)
    if n < STABLE_SAMPLES or n % STABLE_EVERY:
        return False
    before, after = half_widths[3 * n // 8 : n // 2], half_widths[3 * n // 4 :]
    return stats.median(after) > (1 - STABLE_GAIN) * stats.median(before)


@dataclass
class ThrottleGuard:
    """Tells samples at a throttled clock from others and gives the GPU time to recover, up to a limit."""

    sleep: Callable[[float], None]
    highest_hz: float = 0.0
    """That the median of three readings in a row has reached. Not the device's own maximum: clocks may be locked."""
    waited_s: float = 0.0
    _delay_s: float = 0.0
    _in_a_row: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=3))

    def note(self, clock_hz: float | None) -> None:
        """Learn the highest clock from a reading; a single odd one does not count."""
        if clock_hz:
            self._recent.append(clock_hz)
            if len(self._recent) == 3:
                self.highest_hz = max(self.highest_hz, stats.median(list(self._recent)))

    def throttled(self, clock_hz: float | None) -> bool:
        """Whether a sample at this clock is to be set aside; none is any more once the GPU has had its time."""
        self.note(clock_hz)
        return self.below(clock_hz) and self.waited_s < WAITED_S

    def below(self, clock_hz: float | None) -> bool:
        """Whether this clock is a throttled one."""
        return bool(clock_hz) and (clock_hz or 0.0) < THROTTLED_SHARE * self.highest_hz

    def wait(self) -> None:
        """Let the GPU recover: the third time in a row, and each after it, takes longer (as NVBench)."""
        self._in_a_row += 1
        if self._in_a_row > 2:
            self._delay_s = min(LONGEST_WAIT_S, 2.5 * self._delay_s)
        self._delay_s = min(max(WAIT_S, self._delay_s), WAITED_S - self.waited_s)
        self.sleep(self._delay_s)
        self.waited_s += self._delay_s

    def recovered(self) -> None:
        """A sample at a good clock."""
        self._in_a_row, self._delay_s = 0, 0.0
