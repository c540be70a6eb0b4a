"""standardise: each row, less its mean, over its standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class Standardise(Operator):
    """out[row][col] = (x[row][col] - mean(x[row])) / sqrt(var(x[row]) + 1e-5)."""

    rows: int
    cols: int

    inputs = {"x": "rows cols"}
    outputs = {"out": "rows cols"}

    def reduction(self) -> int:
        """Terms of a sum: the error allowed grows with their square root."""
        return self.cols

    def flops(self) -> int:
        """Two passes for mean and variance, one to scale."""
        return 8 * self.rows * self.cols

    def reference(self, x: np.ndarray) -> np.ndarray:
        """In float64, in its plainest form."""
        return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)

    @classmethod
    def examples(cls) -> Sequence[Standardise]:
        """Small and odd: 1, primes, more than a block."""
        return [cls(rows=r, cols=c) for r, c in ((1, 1), (3, 7), (5, 131), (2, 1031))]
