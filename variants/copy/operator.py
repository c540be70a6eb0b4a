"""copy: out = x; also the probe of DRAM and L2 bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Copy(Operator):
    """out[i] = x[i] over n elements; `dtype` stores both arrays."""

    n: int
    dtype: str = "f32"

    special_inputs = {"x": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "i32", "f64")}
    degree = 1
    inputs = {"x": "n"}
    outputs = {"out": "n"}
    library = "cupy"

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The input itself."""
        return x

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: the bits are moved."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Copy]:
        """Lengths of each remainder by 4, of one block and of several, and around a chunk of 4 * 256 * 4."""
        return [cls(n=n) for n in (1, 2, 3, 31, 127, 1021, 4096, 4099, 20011, 65537)]
