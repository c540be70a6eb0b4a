"""softmax_backward: the gradient of softmax, computed from its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class SoftmaxBackward(Operator):
    """dx[r,c] = out[r,c] * (dout[r,c] - sum over k of out[r,k] * dout[r,k]); `dtype` stores all three."""

    rows: int
    cols: int
    dtype: str = "f32"

    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"out": "rows cols", "dout": "rows cols"}
    outputs = {"dx": "rows cols"}
    linear_in = ("dout",)

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def flops(self) -> int:
        """Return four FLOPs per element: a product, its sum, a difference and a product."""
        return 4 * self.rows * self.cols

    def reduction(self) -> int:
        """Return the products that are added up for a row."""
        return self.cols

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but `out` is rows of probabilities; whole numbers remain what they are."""
        arrays = super().make_inputs(seed, integers)
        if not integers:
            exponentials = np.exp(from_storage(arrays["out"], self.dtype))
            arrays["out"] = to_storage(exponentials / exponentials.sum(axis=1, keepdims=True), self.dtype)
        return arrays

    def reference(self, out: np.ndarray, dout: np.ndarray) -> np.ndarray:
        """The formula as it stands."""
        return out * (dout - (out * dout).sum(axis=1, keepdims=True))

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The terms' absolute values added up, where the reference subtracts the sum."""
        wide = {name: np.abs(array) for name, array in self.widened(inputs).items()}
        out, dout = wide["out"], wide["dout"]
        return {"dx": out * (dout + (out * dout).sum(axis=1, keepdims=True))}

    @classmethod
    def examples(cls) -> Sequence[SoftmaxBackward]:
        """Rows of one element, shorter and longer than a warp and a block, divided by vectors and not."""
        shapes = [(1, 1), (5, 3), (7, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        return [cls(rows=rows, cols=cols, dtype=dtype) for dtype in ("f32", "bf16") for rows, cols in shapes]
