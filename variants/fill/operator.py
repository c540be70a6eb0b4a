"""fill: write one value everywhere; the probe of DRAM write bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Fill(Operator):
    """out[i] = value[0] over n elements; `dtype` stores both arrays."""

    n: int
    dtype: str = "f32"

    special_inputs = {"value": ("zeros", "tiny", "masked")}
    choices = {"dtype": ("f32", "i32", "f64")}
    degree = 1
    role = "probe"
    inputs = {"value": "1"}
    outputs = {"out": "n"}

    def reference(self, value: np.ndarray) -> np.ndarray:
        """The value, n times."""
        return np.broadcast_to(value, (self.n,)).copy()

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: the bits are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Fill]:
        """Lengths of each remainder by 4, of one block and of several."""
        return [cls(n=n) for n in (1, 2, 3, 31, 127, 1021, 4096, 4099, 20011, 65537)]
