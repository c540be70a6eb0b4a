"""A case's samples as a small histogram with its axis, for a cell of a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from opbench import units

LEAST_RANGE = 0.02
"""Of the median that the axis spans at least, so that noise of 0.1 % does not look as one of 10 %."""
FENCE = 3.0
"""Interquartile ranges beyond the quartiles that the axis reaches at most: one odd sample shall not press all others
into a bar. What is beyond is counted in the last bar, and in words."""
BARS = 18
WIDTH, HEIGHT, FLOOR = 132, 40, 27
"""In pixels; the bars stand on the floor, below it is the axis."""


def histogram(samples_s: Sequence[float]) -> str:
    """Times in seconds as inline SVG: how many fell where, the median as a line, and the axis' ends with their unit.

    Nothing for fewer than two samples.
    """
    if len(samples_s) < 2:
        return ""
    low, high = _axis(samples_s)
    across = (WIDTH - 2) / (high - low)
    counts = Counter(min(BARS - 1, max(0, int((value - low) / (high - low) * BARS))) for value in samples_s)
    wide = (WIDTH - 2) / BARS
    tall = (FLOOR - 3) / max(counts.values())
    bars = "".join(
        f"M{1 + place * wide:.1f} {FLOOR}v{-max(1.0, count * tall):.1f}h{wide - 0.7:.1f}V{FLOOR}z"
        for place, count in sorted(counts.items())
    )
    middle = f"{1 + (statistics.median(samples_s) - low) * across:.1f}"
    first, last = axis_words(low, high)
    said = f"histogram of {len(samples_s)} samples from {first} to {last}"
    return (
        f'<svg class="samples" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}"><path d="{bars}"/>'
        f'<path class="axis" d="M1 {FLOOR + 3}V{FLOOR}H{WIDTH - 1}v3"/>'
        f'<path class="median" d="M{middle} 0V{FLOOR + 3}"/>'
        f'<text x="0" y="{HEIGHT - 1}">{first}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 1}" text-anchor="end">{last}</text></svg>'
    )


def beyond(samples_s: Sequence[float]) -> int:
    """How many samples lie beyond the axis."""
    if len(samples_s) < 2:
        return 0
    low, high = _axis(samples_s)
    return sum(not low <= value <= high for value in samples_s)


def _axis(samples_s: Sequence[float]) -> tuple[float, float]:
    """Both ends in seconds, the first at least 0."""
    middle = statistics.median(samples_s)
    first, _, third = statistics.quantiles(samples_s, n=4, method="inclusive")
    reach = FENCE * (third - first)
    near = [value for value in samples_s if first - reach <= value <= third + reach]
    spare = max(0.0, LEAST_RANGE * middle - (max(near) - min(near))) / 2
    low, high = max(0.0, min(near) - spare), max(near) + spare
    return (low, high) if high > low else (low, low + 1e-9)


def axis_words(low: float, high: float) -> tuple[str, str]:
    """Both ends of an axis of times, such as ("3.96", "4.04 ms"): the unit once where both share it."""
    first, last = units.time(low), units.time(high)
    return (first.split()[0] if first.split()[-1] == last.split()[-1] else first), last
