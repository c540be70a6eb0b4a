"""transpose: out = the transpose of the matrix x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Transpose(Operator):
    """out[c, r] = x[r, c] for x of `rows` by `cols`; moves data only. `dtype` stores both."""

    rows: int
    cols: int
    dtype: str = "f32"

    special_inputs = {"x": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "i32", "f64")}
    degree = 1
    linear_in = ("x",)
    inputs = {"x": "rows cols"}
    outputs = {"out": "cols rows"}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The transpose of the transpose."""
        back: dict[str, int | str] = {"rows": self.cols, "cols": self.rows, "dtype": self.dtype}
        return [Gradient("transpose", back, {"x": "d.out"}, {"out": "d.x"})] if wanted else []

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The transpose by NumPy."""
        return x.T

    def tolerance(self, precision: str) -> Tolerance:
        """Bit-exact: nothing is computed."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Transpose]:
        """A single element, single rows and columns, primes, whole tiles and not, and rows of 16-byte multiples."""
        sizes = [(1, 1), (1, 37), (129, 1), (3, 5), (64, 64), (67, 64), (64, 127), (65, 132), (200, 268), (257, 131)]
        return [cls(rows=rows, cols=cols) for rows, cols in sizes]
