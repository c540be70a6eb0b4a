"""sum: the sum of all elements of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Sum(Operator):
    """out[0] = x[0] + ... + x[n - 1]; `dtype` stores both arrays."""

    n: int
    dtype: str = "f32"

    special_inputs = {"x": ("zeros", "tiny", "far", "masked", "nan")}
    choices = {"dtype": ("f32", "i32", "f64")}
    degree = 1
    inputs = {"x": "n"}
    outputs = {"out": "1"}
    library = "torch"

    def flops(self) -> int:
        """Return n additions; the first one adds to zero."""
        return self.n

    def reduction(self) -> int:
        """Return n: all terms are added into one output."""
        return self.n

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The total, by NumPy's pairwise summation."""
        return np.sum(x, keepdims=True)

    def tolerance(self, precision: str) -> Tolerance:
        """8 unit roundoffs of sum(abs(x)), whatever n is.

        Adding n zero-mean numbers one after the other passes through totals of about sqrt(k) after k of them; the
        roundings of all these steps add up, as a random walk, to 0.4 u n, which is 0.5 u sum(abs(x)). Trees and partial
        sums stay far below. The default would allow sqrt(n) times as much: more than the result itself for n > 1e5.
        `norm` says nothing here: the relative error of a single total has no bound, as the total may cancel to almost
        nothing.
        """
        bound = 8 * self.roundoff() + self.operand_roundoff(precision)
        return Tolerance(elementwise=bound, norm=1.0)

    @classmethod
    def examples(cls) -> Sequence[Sum]:
        """One element, primes around a warp and a block, whole powers of two, and lengths that need several blocks."""
        return [cls(n=n) for n in (1, 2, 3, 31, 33, 127, 1021, 2048, 4099, 65537, 300007)]
