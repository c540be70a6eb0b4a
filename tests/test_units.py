"""Numbers as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench import units

FACTORS = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.28e12, "4.28 TB/s"),
        (999.4e9, "999 GB/s"),
        (999.6e9, "1.00 TB/s"),
        (1e9, "1.00 GB/s"),
        (1e3, "1.00 kB/s"),
        (1.0, "1.00 B/s"),
        (0, "0 B/s"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_rates(value: float | None, text: str) -> None:
    assert units.byte_rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.5e-6, "12.5 µs"), (2.1e-9, "2.10 ns"), (1e-3, "1.00 ms"), (90, "90.0 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert units.time(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.914, "91 %"), (1.0, "100 %"), (0.0912, "9.1 %"), (0.0, "0.0 %"), (None, "–"), (math.nan, "–")],
)
def test_shares(share: float | None, text: str) -> None:
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.834, "1.83×"),
        (12.34, "12.3×"),
        (123.4, "123×"),
        (0.1, "0.10×"),
        (0.0999, "0.10×"),
        (0.0256, "0.026×"),
        (0.00471, "0.0047×"),
        (0.0, "0.00×"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_ratios(value: float | None, text: str) -> None:
    assert units.ratio(value) == text


@given(st.floats(1e-9, 9e17), st.sampled_from([1, -1]))
def test_what_is_shown_is_the_value_to_three_digits(value: float, sign: int) -> None:
    shown = re.fullmatch(r"(-?[\d.]+) (\D?)B/s", units.byte_rate(sign * value))
    assert shown
    assert float(shown[1]) * FACTORS[shown[2]] == pytest.approx(sign * value, rel=0.0051)
    assert value >= 1e18 or abs(float(shown[1])) < 1000
    assert len(shown[1].strip("-").replace(".", "")) == 3


def test_the_ends_of_an_interval_have_digits_enough_to_differ() -> None:
    assert units.interval(250e-6, 252e-6) == "250–252 µs"
    assert units.interval(3.9901e-3, 3.9924e-3) == "3.990–3.992 ms"
    assert units.interval(276.01e-3, 276.04e-3) == "276.01–276.04 ms"
    assert units.interval(999e-6, 1.001e-3) == "999 µs – 1.00 ms"
    assert units.interval(1e-3, 1e-3) == "1.00 ms at both ends"
    assert units.interval(None, 1e-3) == "–"


def test_a_difference_of_times_has_its_sign() -> None:
    assert [units.signed_time(s) for s in (2.1e-6, -2.1e-6, 0)] == ["+2.10 µs", "−2.10 µs", units.time(0)]


def test_a_count_stands_with_its_noun() -> None:
    texts = [units.count_noun(count, "case") for count in (0, 1, 2, 1234)]
    assert texts == ["0 cases", "1 case", "2 cases", "1,234 cases"]
