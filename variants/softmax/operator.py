"""softmax: the exponentials of each row, divided by their sum, or the logarithms of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Gradient, Operator, from_storage, to_storage, vector_width

DEPTH = {"f64": 800.0}
"""What the exponential of its negative vanishes at, by dtype; 200 in float32 and bf16."""


@dataclass(frozen=True, kw_only=True)
class Softmax(Operator):
    """out[r,c] = exp(x[r,c] - m) / sum over k of exp(x[r,k] - m), where m is the row's maximum; `dtype` stores both.

    With log="yes", out is the logarithm of that: x[r,c] - m - log(sum over k of exp(x[r,k] - m)).
    """

    rows: int
    cols: int
    log: str = "no"
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "level", "far", "masked", "finite_mask", "nan")}
    choices = {"log": ("no", "yes"), "dtype": ("f32", "bf16", "f64")}
    inputs = {"x": "rows cols"}
    outputs = {"out": "rows cols"}
    integers_exact = False  # exponentials are not whole
    library = "torch"

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def flops(self) -> int:
        """Return five FLOPs per element: comparison, subtraction, exponential, addition and product."""
        return 5 * self.rows * self.cols

    def reduction(self) -> int:
        """Return the exponentials that are added up for a row."""
        return self.cols

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the gradient from the probabilities alone, as x is not needed again; None for their logarithms."""
        if self.log == "yes":
            return None
        axes = {name: value for name, value in self.axes.items() if name != "log"}
        tensors = {"out": "out", "dout": "d.out"}
        return [Gradient("softmax_backward", axes, tensors, {"dx": "d.x"})] if wanted else []

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded normals, every second row so far below 0 that only differences from its maximum have exponentials."""
        arrays = super().make_inputs(seed, integers)
        x = from_storage(arrays["x"], self.dtype)
        x[1::2] -= DEPTH.get(self.dtype, 200.0)
        return {"x": to_storage(x, self.dtype)}

    def reference(self, x: np.ndarray) -> np.ndarray:
        """With the maximum subtracted."""
        below = x - x.max(axis=1, keepdims=True)
        out = np.exp(below)
        total = out.sum(axis=1, keepdims=True)
        if self.log == "yes":
            return below - np.log(total)
        out /= total
        return out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the result times 1 + its exponent's size, as an error of the exponent is a relative one of the result.

        The error of a logarithm is that of the exponent, and that of the sum's logarithm.
        """
        x = self.widened(inputs)["x"]
        if self.log == "yes":
            return {"out": 1 - self.reference(x)}
        return {"out": self.reference(x) * (1 + x.max(axis=1, keepdims=True) - x)}

    @classmethod
    def examples(cls) -> Sequence[Softmax]:
        """Rows of one element, shorter and longer than a warp and a block, divided by vectors and not."""
        shapes = [(1, 1), (5, 3), (7, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        logs = [(5, 3), (2, 32), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        return [cls(rows=rows, cols=cols, dtype=dtype) for dtype in ("f32", "bf16") for rows, cols in shapes] + [
            cls(rows=rows, cols=cols, log="yes", dtype=dtype) for dtype in ("f32", "bf16") for rows, cols in logs
        ]
