"""Tensors: their names, shapes and dtypes, how their numbers are stored, and how far results may deviate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from opbench.kernels.arrays import by_pieces, from_bf16, to_bf16

Arrays = dict[str, np.ndarray]

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
}
"""Storage of each dtype on the host; bf16 travels as its 16 bits."""
INTEGERS = ("i32", "u8")
"""Dtypes of whole numbers: no gradient, no rounding."""


@dataclass(frozen=True)
class Tensor:
    """Name, shape and dtype of one input, output or workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers."""
        return self.dtype in INTEGERS


@dataclass(frozen=True)
class Tolerance:
    """What a right result may deviate from the float64 reference.

    `elementwise`: |out - reference| <= elementwise * magnitude, element by element, where magnitude is the reference
    computed on absolute values. `norm`: ||out - reference|| <= norm * ||reference||. Both 0 means bit-exact.
    Source: the standard forward error bound of an inner product (Higham, Accuracy and Stability, 2002, ch. 3), with the
    length's square root in place of the length, as errors of zero-mean data do not add up.
    """

    elementwise: float
    norm: float

    @property
    def exact(self) -> bool:
        """Whether only the very bits of the reference will do."""
        return self.elementwise == 0 and self.norm == 0


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round values to `dtype` as it is stored (to nearest, ties to even; to i32 towards 0, as C does)."""
    return by_pieces(values, to_bf16, "u2") if dtype == "bf16" else values.astype(DTYPES[dtype], copy=False)


def from_storage(array: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as float32 or float64."""
    return by_pieces(array, from_bf16, "f4") if dtype == "bf16" else array


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as `dtype` stores them, in float64."""
    return from_storage(to_storage(values.astype(np.float32), dtype), dtype).astype(np.float64)


def magnitude_of_rounded(exact: np.ndarray, magnitude: np.ndarray, elementwise: float, dtype: str) -> np.ndarray:
    """Scale of the allowance of a result that is stored a second time, rounded to a coarser `dtype`.

    The result itself may be off by elementwise * magnitude: where that reaches over a tie, the number on either side is
    right, elsewhere only the nearest.
    """
    middle, allowed = rounded(exact, dtype), elementwise * magnitude
    off = (np.abs(rounded(exact + sign * allowed, dtype) - middle) for sign in (-1, 1))
    found: np.ndarray = np.maximum(*off) / elementwise
    return found
