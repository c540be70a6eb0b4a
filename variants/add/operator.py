"""add: out = a + b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Add(Operator):
    """out[i] = a[i] + b[i] over n elements; `dtype` stores all arrays."""

    n: int
    dtype: str = "f32"

    special_inputs = {"a": ("tiny", "infinite"), "b": ("tiny",)}
    choices = {"dtype": ("f32", "i32", "f64")}
    degree = 1
    inputs = {"a": "n", "b": "n"}
    outputs = {"out": "n"}
    library = "torch"

    def flops(self) -> int:
        """Return one addition per element."""
        return self.n

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The sum, element by element."""
        return a + b

    def tolerance(self, precision: str) -> Tolerance:
        """One rounding of the result, and in a narrower class those of both operands, doubled for slack."""
        bound = 2 * (self.roundoff() + self.operand_roundoff(precision))
        return Tolerance(elementwise=bound, norm=bound)

    @classmethod
    def examples(cls) -> Sequence[Add]:
        """Lengths of each remainder by 4, of one block and of several, and around a chunk of 4 * 256 * 2."""
        return [cls(n=n) for n in (1, 2, 3, 31, 127, 1021, 2048, 4099, 20011, 65537)]
