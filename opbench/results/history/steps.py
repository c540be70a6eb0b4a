"""Detect lasting changes of a case's time over many runs.

The runs are split into segments of constant time. The split minimises the sum of the distances of the medians'
logarithms to the median of their segment, in units of the noise, plus a price per split (optimal partitioning: Jackson
et al., IEEE Signal Processing Letters 12, 2005; with the L1 distance, as in asv's step detection). The price is 2 ln n,
at least 3: twice the Bayesian information criterion, because the position of a split is searched too. A segment has at
least two runs, so one odd run is no step. A split counts if the medians of its two segments differ by more than the
threshold.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from opbench.timing import stats

MIN_SEGMENT = 2
"""Least number of runs in a segment: a step must persist."""
MIN_PRICE = 3.0


@dataclass(frozen=True)
class TimeStep:
    """A lasting change of a case's time: its position, and the time in seconds before and after."""

    index: int
    """Index of the first run after the step."""
    before_s: float
    """Median of the run medians in the segment before it, in seconds."""
    after_s: float

    @property
    def ratio(self) -> float:
        """Return the time after the step divided by the time before it."""
        return self.after_s / self.before_s


def find_steps(medians_s: Sequence[float], threshold: float) -> list[TimeStep]:
    """Return the steps in medians that are ordered by time."""
    values = [math.log(median) for median in medians_s]
    if len(values) < 2 * MIN_SEGMENT or max(values) - min(values) <= math.log1p(threshold):
        return []
    cuts = _partition(values, noise_scale(values, threshold))
    # Segments that differ by less than the threshold are merged; the next split is judged against the merged one.
    accepted: list[int] = []
    for index, cut in enumerate(cuts):
        start, end = (accepted[-1] if accepted else 0), [*cuts, len(values)][index + 1]
        if abs(stats.median(values[cut:end]) - stats.median(values[start:cut])) > math.log1p(threshold):
            accepted.append(cut)
    segment_ends = [*accepted, len(values)]
    return [
        TimeStep(
            cut,
            stats.median(medians_s[(accepted[index - 1] if index else 0) : cut]),
            stats.median(medians_s[cut : segment_ends[index + 1]]),
        )
        for index, cut in enumerate(accepted)
    ]


def noise_scale(values: Sequence[float], threshold: float) -> float:
    """Return the scale of differences between runs without a step: the median difference of neighbours.

    A few steps do not change this median. The scale is at least the threshold.
    """
    between = [abs(after - before) for before, after in itertools.pairwise(values)]
    return max(math.log1p(threshold), 1.4826 * stats.median(between) / math.sqrt(2))


def _partition(values: Sequence[float], scale: float) -> list[int]:
    """Return the positions of the splits that have the lowest cost."""
    n = len(values)
    split_price = max(MIN_PRICE, 2 * math.log(n))
    best = [0.0, *[math.inf] * n]
    previous_cut = [0] * (n + 1)
    for start in range(n - MIN_SEGMENT + 1):
        if best[start] == math.inf:
            continue
        for end, distance in _distances(values, start):
            cost = best[start] + distance / scale + (split_price if start else 0.0)
            if cost < best[end]:
                best[end], previous_cut[end] = cost, start
    cuts = []
    while n := previous_cut[n]:
        cuts.append(n)
    return cuts[::-1]


def _distances(values: Sequence[float], start: int) -> list[tuple[int, float]]:
    """Return, for each segment that begins at `start`, the sum of the distances to the segment's median."""
    ordered: list[float] = []
    distance, distances = 0.0, []
    for end in range(start, len(values)):
        segment_median = ordered[len(ordered) // 2] if ordered else values[end]
        # With an even number of values, every median gives the same sum of distances.
        low = ordered[(len(ordered) - 1) // 2] if ordered else segment_median
        value = values[end]
        distance += max(0.0, low - value, value - segment_median)
        bisect.insort(ordered, value)
        if end - start + 1 >= MIN_SEGMENT:
            distances.append((end + 1, distance))
    return distances
