"""Names, shapes and dtypes of tensors, conversion to the stored dtypes, and tolerances of results."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.kernels.arrays import FLOAT8, by_pieces, from_bf16, from_float8, to_bf16, to_float8

Arrays = dict[str, np.ndarray]

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "e4m3": np.dtype(np.uint8),
    "e5m2": np.dtype(np.uint8),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}
"""Storage of each dtype on the host; bf16 is stored as its 16 bits, the floats of 8 bits (e4m3, e5m2) as their bits."""
WORKSPACE_ALIGNMENT = 256
"""Alignment in bytes of each workspace, and of each value in a network's memory.

cudaMalloc guarantees the same alignment, so vector loads stay aligned.
"""
INTEGERS = ("i32", "i8", "u8")
"""Dtypes of whole numbers: no gradient, no rounding."""


@dataclass(frozen=True)
class Tensor:
    """Name, shape and dtype of one input, output or workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def is_integer(self) -> bool:
        """Return whether the tensor contains whole numbers."""
        return self.dtype in INTEGERS


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed deviation of a result from the float64 reference.

    `elementwise`: |out - reference| <= elementwise * magnitude, element by element, where magnitude is the reference
    computed on absolute values. `norm`: ||out - reference|| <= norm * ||reference||. If both are 0, results must be
    bit-exact. Source: the standard forward error bound of an inner product (Higham, Accuracy and Stability, 2002, ch.
    3), with the square root of the length instead of the length, because errors of zero-mean data partly cancel.
    """

    elementwise: float
    norm: float
    keeps_nan: bool = False
    """Whether an element must be NaN where the reference is; otherwise any value is right there."""

    @property
    def exact(self) -> bool:
        """Return whether results must equal the reference bit for bit."""
        return self.elementwise == 0 and self.norm == 0


VECTOR_BYTES = 16
"""Bytes of the widest load or store of one thread, such as a `float4`."""


def vector_width(dtype: str, *sizes: int) -> int:
    """Return the elements of the longest vector of at most 16 bytes that divides every size.

    Example: `vector_width("bf16", 24)` is 8, `vector_width("bf16", 24, 12)` is 4, and `vector_width("f32", 5)` is 1.
    Without a size it is the number of elements in 16 bytes. Raises UsageError for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise UsageError(unknown_name("dtype", dtype, DTYPES, place="vector_width"))
    # Bytes per vector divided by bytes per element is a power of two.
    return math.gcd(VECTOR_BYTES // DTYPES[dtype].itemsize, *sizes)


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert values to the bits of `dtype`: round to nearest, ties to even; round to i32 towards 0, as C does.

    Numbers beyond the largest of e4m3 (448) or e5m2 (57344) become the largest, as in CUDA's conversions.
    """
    if dtype in FLOAT8:
        return by_pieces(values, functools.partial(to_float8, dtype=dtype), "u1")
    return by_pieces(values, to_bf16, "u2") if dtype == "bf16" else values.astype(DTYPES[dtype], copy=False)


def lowest_number(dtype: str) -> float:
    """Return the lowest finite number that a floating-point `dtype` can represent."""
    if dtype in LOWEST_NUMBERS:
        return LOWEST_NUMBERS[dtype]
    return float(np.finfo(DTYPES[dtype]).min)


LOWEST_NUMBERS = {"bf16": -(2 - 2.0**-7) * 2.0**127, "e4m3": -448.0, "e5m2": -57344.0}


def from_storage(array: np.ndarray, dtype: str) -> np.ndarray:
    """Convert stored values to numbers: bf16 and 8-bit floats become float32, other dtypes are unchanged."""
    if dtype in FLOAT8:
        return by_pieces(array, functools.partial(from_float8, dtype=dtype), "f4")
    return by_pieces(array, from_bf16, "f4") if dtype == "bf16" else array


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return values as float64, rounded to the numbers that `dtype` can represent."""
    return from_storage(to_storage(values.astype(np.float32), dtype), dtype).astype(np.float64)


def magnitude_of_rounded(exact: np.ndarray, magnitude: np.ndarray, elementwise: float, dtype: str) -> np.ndarray:
    """Return the scale of the tolerance for a result that is rounded to a less precise `dtype` before it is stored.

    The result itself may deviate by elementwise * magnitude. If that range contains a tie, the numbers on both
    sides are right; otherwise only the nearest is.
    """
    nearest, deviation = rounded(exact, dtype), elementwise * magnitude
    distances = (np.abs(rounded(exact + sign * deviation, dtype) - nearest) for sign in (-1, 1))
    result: np.ndarray = np.maximum(*distances) / elementwise
    return result
