"""Order statistics for timings: no distribution assumed, nothing trimmed, no SciPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile with linear interpolation (Hyndman and Fan's type 7, NumPy's default)."""
    if not samples:
        raise ValueError("no samples")
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q} is not within 0 and 1")
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    below = int(at)
    if below + 1 == len(ordered):
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    # The clamp keeps rounding from leaving the samples' range.
    return min(high, max(low, low + (high - low) * (at - below)))


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two middle ones."""
    return quantile(samples, 0.5)


@dataclass(frozen=True)
class Interval:
    """A range with the probability that it covers the true value, when that could be computed."""

    low: float
    high: float
    coverage: float


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest symmetric pair of order statistics that covers the true median with at least `confidence`.

    Exact for any distribution: the number of samples below the median is binomial(n, 1/2). With fewer than six samples
    no pair reaches 95 %; then it is the whole range, and `coverage` says how little that is worth.
    """
    if not samples:
        raise ValueError("no samples")
    rank, coverage = interval_rank(len(samples), confidence)
    ordered = sorted(samples)
    return Interval(ordered[rank], ordered[len(ordered) - 1 - rank], coverage)


@functools.lru_cache(maxsize=4096)
def interval_rank(n: int, confidence: float) -> tuple[int, float]:
    """Zero-based rank r such that samples r and n-1-r (in order) bound the median, and the exact coverage.

    Both ends miss with probability P(binomial(n, 1/2) <= r).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    missed = best = 0.5**n
    rank = 0
    log_half = n * math.log(0.5)
    for r in range(1, (n + 1) // 2):
        missed += math.exp(math.lgamma(n + 1) - math.lgamma(r + 1) - math.lgamma(n - r + 1) + log_half)
        if 1 - 2 * missed < confidence:
            break
        rank, best = r, missed
    return rank, 1 - 2 * best


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians with its interval and the method behind it."""

    value: float
    low: float
    high: float
    method: str


def median_ratio(
    numerator: Sequence[float],
    denominator: Sequence[float],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """Ratio of the medians of two sets of samples, with a percentile-bootstrap interval.

    Both sets are resampled independently. The interval assumes independent samples: a drift that both sets share
    (interleaved measuring gives them the same one) widens it, a drift between two runs is not in it.
    """
    if not numerator or not denominator:
        raise ValueError("no samples")
    generator = np.random.default_rng(seed)
    tops = _resampled_medians(numerator, resamples, generator)
    bottoms = _resampled_medians(denominator, resamples, generator)
    ratios = tops / bottoms
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    method = f"percentile bootstrap of the medians, {resamples} resamples, seed {seed}"
    return Ratio(median(numerator) / median(denominator), float(low), float(high), method)


def _resampled_medians(samples: Sequence[float], resamples: int, generator: np.random.Generator) -> np.ndarray:
    values = np.asarray(samples, dtype=np.float64)
    picks = generator.integers(0, len(values), size=(resamples, len(values)))
    return np.asarray(np.median(values[picks], axis=1))
