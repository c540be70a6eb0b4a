"""sort: the elements of a vector in ascending order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Sort(Operator):
    """out = the elements of x in ascending order; `dtype` stores both vectors.

    NaNs come last, as in PyTorch and NumPy. -0 and +0 are equal, so both orders of them are right.
    """

    n: int
    dtype: str = "f32"

    choices = {"dtype": ("f32", "i32")}
    special_inputs = {
        "x": ("ties", "zeros", "level", "tiny", "far", "infinite", "masked", "finite_mask", "nan", "descending")
    }
    inputs = {"x": "n"}
    outputs = {"out": "n"}
    library = "torch"

    @property
    def degree(self) -> int | None:
        """Return 1 for floats; doubled whole numbers of 32 bits would overflow."""
        return 1 if self.dtype == "f32" else None

    def largest_whole_number(self) -> int:
        """Return the largest i32 number, so that all digits differ."""
        return 2**31 - 1

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero: elements are moved."""
        return Tolerance(0.0, 0.0)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sizes of the results."""
        return {"out": abs(self.reference_outputs(inputs)["out"])}

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Sort by NumPy."""
        return np.sort(x)

    @classmethod
    def examples(cls) -> Sequence[Sort]:
        """One element, fewer and more than a warp and a tile, whole and odd numbers of them."""
        sizes = (1, 3, 31, 256, 1021, 4096, 5003, 20011)
        return [cls(n=n, dtype=dtype) for n in sizes for dtype in cls.choices["dtype"]]
