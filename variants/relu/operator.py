"""relu: out = max(x, 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Relu(Operator):
    """out[i] = max(x[i], 0) over n elements; `dtype` stores both arrays."""

    n: int
    dtype: str = "f32"

    special_inputs = {"x": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "bf16", "i32", "f64")}
    degree = 1
    inputs = {"x": "n"}
    outputs = {"out": "n"}
    library = "torch"

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The larger of x and 0, element by element."""
        return np.maximum(x, 0.0)

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The output's gradient where the output is above 0."""
        tied = {"out": "out", "dout": "d.out"}
        return [Gradient("relu_backward", self.axes, tied, {"dx": "d.x"})] if wanted else []

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: nothing is rounded."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Relu]:
        """Lengths of each remainder by 4, of one block and of several, and around a chunk of 4 * 256 * 4."""
        plain = [cls(n=n) for n in (1, 2, 3, 31, 127, 1021, 4096, 4099, 20011, 65537)]
        return [*plain, *(cls(n=n, dtype="bf16") for n in (1, 5, 7, 8, 127, 4102, 16384, 65537))]
