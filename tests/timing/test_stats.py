"""Order statistics: exact ranks against tables, coverage by simulation."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.timing import stats
from support.checks.errors import refuses

samples_ = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(samples_, st.floats(0, 1))
def test_quantile_is_numpys(samples: list[float], q: float) -> None:
    assert stats.quantile(samples, q) == pytest.approx(float(np.quantile(samples, q)))
    assert min(samples) <= stats.quantile(samples, q) <= max(samples)


@given(samples_)
def test_median_is_pythons(samples: list[float]) -> None:
    assert stats.median(samples) == pytest.approx(statistics.median(samples))


def test_a_sum_of_medians_has_the_interval_of_its_parts() -> None:
    assert stats.median_sum([(1, [3.0] * 10), (-1, [2.0] * 10)]) == (
        1.0,
        stats.Interval(1.0, 1.0, 1 - 2 * 0.5**10 * 11),
    )
    one = [float(value) for value in range(20)]
    total, interval = stats.median_sum([(1, one), (-1, [5.0] * 20)])
    own = stats.median_interval(one)
    assert (total, interval.low, interval.high) == (9.5 - 5, pytest.approx(own.low - 5), pytest.approx(own.high - 5))
    back, mirrored = stats.median_sum([(-1, one), (1, [5.0] * 20)])
    assert (back, mirrored.low, mirrored.high) == (-total, pytest.approx(-interval.high), pytest.approx(-interval.low))


def test_the_difference_of_medians_is_covered() -> None:
    draw = np.random.default_rng(5)
    found = [
        stats.median_sum([(1, list(draw.normal(5, 1, 20))), (-1, list(draw.normal(3, 2, 30)))])[1] for _ in range(400)
    ]
    assert sum(one.low <= 2 <= one.high for one in found) >= 0.95 * len(found)


@pytest.mark.parametrize("call", [stats.median, stats.median_interval, lambda s: stats.median_ratio(s, [1.0])])
def test_nothing_to_summarise(call: object) -> None:
    with refuses("no-samples", error=ValueError):
        call([])  # type: ignore[operator]


def test_senseless_quantile_and_confidence() -> None:
    with refuses("not-allowed", "quantile", value=1.5, error=ValueError):
        stats.quantile([1.0], 1.5)
    with refuses("not-allowed", "confidence", value=1.0, error=ValueError):
        stats.interval_rank(10, 1.0)


# Ranks of the 95 % interval, one-based, and their coverage: sums of binomial coefficients over 2**n.
@pytest.mark.parametrize(
    ("n", "rank", "coverage"), [(6, 1, 0.96875), (10, 2, 0.978515625), (20, 6, 0.958610534), (25, 8, 0.956714749)]
)
def test_ranks_of_the_tables(n: int, rank: int, coverage: float) -> None:
    assert stats.interval_rank(n, 0.95) == (rank - 1, pytest.approx(coverage))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_samples_say_so(n: int) -> None:
    interval = stats.median_interval([float(i) for i in range(n)])
    assert (interval.low, interval.high) == (0.0, n - 1.0)
    assert interval.coverage == pytest.approx(max(0.0, 1 - 2 * 0.5**n)) and interval.coverage < 0.95


@given(st.integers(6, 500), st.sampled_from([0.9, 0.95, 0.99]))
def test_rank_is_the_narrowest_that_covers(n: int, confidence: float) -> None:
    def covers(rank: int) -> float:
        return 1 - 2 * sum(math.comb(n, k) for k in range(rank + 1)) / 2**n

    rank, coverage = stats.interval_rank(n, confidence)
    assert coverage == pytest.approx(covers(rank), abs=1e-9)
    if n >= 8:
        assert coverage >= confidence
    assert covers(rank + 1) < confidence or rank + 1 >= (n + 1) // 2


@given(samples_)
def test_interval_holds_the_median(samples: list[float]) -> None:
    interval = stats.median_interval(samples)
    assert interval.low <= stats.median(samples) <= interval.high


@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed", "two_modes"])
@pytest.mark.parametrize("n", [10, 31])
def test_interval_covers_the_true_median(shape: str, n: int) -> None:
    generator = np.random.default_rng(1)
    draws = {
        "normal": generator.normal(1, 0.1, (2000, n)),
        "heavy": 1 + generator.standard_cauchy((2000, n)),
        "skewed": generator.exponential(1 / math.log(2), (2000, n)),
        "two_modes": np.where(generator.random((2000, n)) < 0.3, 2.0, generator.normal(1, 0.01, (2000, n))),
    }[shape]
    truth = 1.0 if shape != "two_modes" else 1 + 0.01 * statistics.NormalDist().inv_cdf(0.5 / 0.7)
    intervals = [stats.median_interval(list(row)) for row in draws]
    covered = float(np.mean([i.low <= truth <= i.high for i in intervals]))
    # Exact coverage within four standard errors of the simulation.
    assert covered == pytest.approx(intervals[0].coverage, abs=4 * math.sqrt(0.05 * 0.95 / 2000))


def test_ratio_of_constant_times() -> None:
    ratio = stats.median_ratio([3.0] * 10, [2.0] * 10)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5)) and ratio.coverage > 0.97


def test_ratio_joins_the_two_intervals_as_published() -> None:
    a, b = [1.0 + 0.01 * i for i in range(10)], [2.0 + 0.01 * i for i in range(10)]
    # Ranks 2 and 9 of 10 bound a median: 1.01 to 1.08 around 1.045, 2.01 to 2.08 around 2.045.
    ratio = stats.median_ratio(b, a)
    low = math.log(2.045 / 1.045) - math.hypot(math.log(2.045 / 2.01), math.log(1.08 / 1.045))
    high = math.log(2.045 / 1.045) + math.hypot(math.log(2.08 / 2.045), math.log(1.045 / 1.01))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
    back = stats.median_ratio(a, b)
    assert (back.value, back.low, back.high) == pytest.approx((1 / ratio.value, 1 / ratio.high, 1 / ratio.low))


def test_ratio_says_when_samples_are_too_few_and_refuses_what_is_no_time() -> None:
    assert stats.median_ratio([1.0, 2.0, 3.0], [1.0] * 20).coverage == pytest.approx(0.75)
    with refuses("not-positive", error=ValueError):
        stats.median_ratio([0.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize("n", [6, 10, 31])
def test_ratio_covers_the_truth(n: int) -> None:
    generator = np.random.default_rng(4)
    shapes = {
        "normal": lambda: generator.normal(1, 0.03, n),
        "skewed": lambda: 1 + generator.exponential(0.03, n),
        "two modes": lambda: np.where(generator.random(n) < 0.3, 1.05, generator.normal(1, 0.005, n)),
        "ticks": lambda: np.round(generator.normal(100, 1, n)) / 100,
    }
    for name, draw in shapes.items():
        found = [stats.median_ratio(list(draw()), list(draw())) for _ in range(600)]
        covered = sum(ratio.low <= 1 <= ratio.high for ratio in found) / len(found)
        assert covered > 0.95 - 4 * math.sqrt(0.05 * 0.95 / len(found)), name
