"""How numbers are stored: floats of 8 bits against their definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from opbench.kernels.tensors import DTYPES, from_storage, to_storage, vector_width
from support.checks.errors import refuses_name

KINDS = {"e4m3": (4, 3, 0x7E), "e5m2": (5, 2, 0x7B)}
"""Bits of the exponent and of the fraction, and the bits of the largest number."""


def defined(bits: int, kind: str) -> Fraction:
    """The number of a finite pattern."""
    exponent_bits, digits, _ = KINDS[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    exponent, fraction = bits % 128 >> digits, bits % 2**digits
    size = Fraction(fraction + (2**digits if exponent else 0), 2**digits) * Fraction(2) ** (max(exponent, 1) - bias)
    return -size if bits >= 128 else size


@pytest.mark.parametrize("kind", KINDS)
def test_every_float_of_8_bits_has_its_number_and_is_stored_as_itself(kind: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    numbers = from_storage(bits, kind)
    finite = bits % 128 <= KINDS[kind][2]
    assert numbers.dtype == np.float32
    assert [Fraction(float(x)) for x in numbers[finite]] == [defined(int(b), kind) for b in bits[finite]]
    np.testing.assert_array_equal(to_storage(numbers[finite], kind), bits[finite])
    assert np.isnan(numbers[~finite]).sum() == {"e4m3": 2, "e5m2": 6}[kind]
    assert np.isinf(numbers[~finite]).sum() == {"e4m3": 0, "e5m2": 2}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_floats_of_8_bits_are_rounded_to_nearest_ties_to_even(kind: str) -> None:
    largest = KINDS[kind][2]
    positive = from_storage(np.arange(largest + 1, dtype=np.uint8), kind)
    middle = (positive[:-1] + positive[1:]) / 2
    lower = np.arange(largest, dtype=np.uint8)
    np.testing.assert_array_equal(to_storage(middle, kind), lower + lower % 2)
    np.testing.assert_array_equal(to_storage(np.nextafter(middle, np.float32(0)), kind), lower)
    np.testing.assert_array_equal(to_storage(np.nextafter(-middle, -np.float32(np.inf)), kind), lower + 1 + 128)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_the_largest_float_of_8_bits_become_the_largest(kind: str) -> None:
    largest = KINDS[kind][2]
    stored = to_storage(np.array([1e30, -1e30, np.inf, np.nan, -0.0], np.float32), kind)
    assert stored.tolist()[:3] == [largest, largest + 128, largest]
    assert np.isnan(from_storage(stored[3:4], kind)).all()
    assert stored[4] == 128


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_width_of_a_vector_is_the_largest_that_divides_every_size(dtype: str) -> None:
    size = DTYPES[dtype].itemsize
    for sizes in ((), (1,), (5,), (12,), (24, 6), (48, 32), (1024,)):
        widths = [width for width in (1, 2, 4, 8, 16) if width * size <= 16 and all(s % width == 0 for s in sizes)]
        assert vector_width(dtype, *sizes) == widths[-1]


def test_the_width_of_a_vector_needs_a_known_dtype() -> None:
    with refuses_name("dtype", "f42"):
        vector_width("f42", 8)
