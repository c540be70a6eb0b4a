"""A small histogram of a case's samples for a table cell."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from opbench import units

MIN_RANGE = 0.02
"""Least width of the axis as a share of the median, so that 0.1 % of noise does not look like 10 %."""
FENCE_FACTOR = 3.0
"""The axis extends at most this many interquartile ranges beyond the quartiles, so that one outlier does not squeeze
all other samples into one bar. Outliers are counted in the first or last bar, and in the text."""
BARS = 18
WIDTH, HEIGHT, FLOOR = 132, 40, 27
"""In pixels; `FLOOR` is the vertical position of the axis, on which the bars stand."""


def histogram(samples_s: Sequence[float]) -> str:
    """Draw times in seconds as a histogram in inline SVG, with the median as a line; "" for fewer than two samples.

    Both ends of the axis are labelled with units.
    """
    if len(samples_s) < 2:
        return ""
    low, high = _axis_limits(samples_s)
    pixels_per_s = (WIDTH - 2) / (high - low)
    counts = Counter(min(BARS - 1, max(0, int((value - low) / (high - low) * BARS))) for value in samples_s)
    bar_width = (WIDTH - 2) / BARS
    pixels_per_count = (FLOOR - 3) / max(counts.values())
    bars = "".join(
        f"M{1 + index * bar_width:.1f} {FLOOR}v{-max(1.0, count * pixels_per_count):.1f}h{bar_width - 0.7:.1f}V{FLOOR}z"
        for index, count in sorted(counts.items())
    )
    median_x = f"{1 + (statistics.median(samples_s) - low) * pixels_per_s:.1f}"
    low_text, high_text = axis_text(low, high)
    label = f"histogram of {len(samples_s)} samples from {low_text} to {high_text}"
    return (
        f'<svg class="samples" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"><path d="{bars}"/>'
        f'<path class="axis" d="M1 {FLOOR + 3}V{FLOOR}H{WIDTH - 1}v3"/>'
        f'<path class="median" d="M{median_x} 0V{FLOOR + 3}"/>'
        f'<text x="0" y="{HEIGHT - 1}">{low_text}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 1}" text-anchor="end">{high_text}</text></svg>'
    )


def samples_beyond_axis(samples_s: Sequence[float]) -> int:
    """Return the number of samples outside the histogram's axis."""
    if len(samples_s) < 2:
        return 0
    low, high = _axis_limits(samples_s)
    return sum(not low <= value <= high for value in samples_s)


def _axis_limits(samples_s: Sequence[float]) -> tuple[float, float]:
    """Return both ends of the axis in seconds; the lower end is at least 0."""
    median_s = statistics.median(samples_s)
    first_quartile, _, third_quartile = statistics.quantiles(samples_s, n=4, method="inclusive")
    reach = FENCE_FACTOR * (third_quartile - first_quartile)
    within_fence = [value for value in samples_s if first_quartile - reach <= value <= third_quartile + reach]
    padding_s = max(0.0, MIN_RANGE * median_s - (max(within_fence) - min(within_fence))) / 2
    low, high = max(0.0, min(within_fence) - padding_s), max(within_fence) + padding_s
    return (low, high) if high > low else (low, low + 1e-9)


def axis_text(low: float, high: float) -> tuple[str, str]:
    """Format both ends of a time axis, such as ("3.96", "4.04 ms"); a common unit appears once."""
    low_text, high_text = units.time(low), units.time(high)
    return (low_text.split()[0] if low_text.split()[-1] == high_text.split()[-1] else low_text), high_text
