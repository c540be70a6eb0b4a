"""Where a case's time changed for good over many runs.

The rule: cut the runs into stretches of constant time such that the distance of the medians' logarithms to their
stretch's median, in units of the noise, plus a price for every cut, is least (optimal partitioning: Jackson et al.,
IEEE Signal Processing Letters 12, 2005; with the L1 distance, as asv's step detection has it). The price is 2 ln n, at
least 3: twice what the Bayesian information criterion asks for, as the place of a cut is searched, too. A stretch has
at least two runs, so that one odd run is no step; a cut counts where the medians of the two stretches differ by more
than the threshold.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from opbench.timing import stats

SHORTEST = 2
"""Runs of a stretch: a step must persist."""
LEAST_PRICE = 3.0


@dataclass(frozen=True)
class TimeStep:
    """A change that persisted."""

    index: int
    """Of the first run after it."""
    before_s: float
    """Median of the medians of the stretch before it."""
    after_s: float

    @property
    def ratio(self) -> float:
        """Time after over time before."""
        return self.after_s / self.before_s


def find_steps(medians_s: Sequence[float], threshold: float) -> list[TimeStep]:
    """The steps in the medians of runs in the order of time."""
    values = [math.log(median) for median in medians_s]
    if len(values) < 2 * SHORTEST or max(values) - min(values) <= math.log1p(threshold):
        return []
    cuts = _partition(values, noise(values, threshold))
    # Stretches that differ by less than the threshold are one; the next cut is then judged against both together.
    kept: list[int] = []
    for number, cut in enumerate(cuts):
        start, end = (kept[-1] if kept else 0), [*cuts, len(values)][number + 1]
        if abs(stats.median(values[cut:end]) - stats.median(values[start:cut])) > math.log1p(threshold):
            kept.append(cut)
    ends = [*kept, len(values)]
    return [
        TimeStep(
            cut,
            stats.median(medians_s[(kept[number - 1] if number else 0) : cut]),
            stats.median(medians_s[cut : ends[number + 1]]),
        )
        for number, cut in enumerate(kept)
    ]


def noise(values: Sequence[float], threshold: float) -> float:
    """Scale of what runs differ by without a step: from the median step between neighbours, which few steps do not
    move; at least the threshold."""
    between = [abs(after - before) for before, after in itertools.pairwise(values)]
    return max(math.log1p(threshold), 1.4826 * stats.median(between) / math.sqrt(2))


def _partition(values: Sequence[float], scale: float) -> list[int]:
    """The cuts of the cheapest partition."""
    n = len(values)
    price = max(LEAST_PRICE, 2 * math.log(n))
    best = [0.0, *[math.inf] * n]
    came_from = [0] * (n + 1)
    for start in range(n - SHORTEST + 1):
        if best[start] == math.inf:
            continue
        for end, distance in _distances(values, start):
            cost = best[start] + distance / scale + (price if start else 0.0)
            if cost < best[end]:
                best[end], came_from[end] = cost, start
    cuts = []
    while n := came_from[n]:
        cuts.append(n)
    return cuts[::-1]


def _distances(values: Sequence[float], start: int) -> list[tuple[int, float]]:
    """For each end of a stretch from `start`, the sum of the distances to its median, updated value by value."""
    ordered: list[float] = []
    distance, found = 0.0, []
    for end in range(start, len(values)):
        middle = ordered[len(ordered) // 2] if ordered else values[end]
        # Any median serves: the sum is the same for all, and grows by the newcomer's distance to the nearest.
        low = ordered[(len(ordered) - 1) // 2] if ordered else middle
        value = values[end]
        distance += max(0.0, low - value, value - middle)
        bisect.insort(ordered, value)
        if end - start + 1 >= SHORTEST:
            found.append((end + 1, distance))
    return found
