"""layernorm: normalise each row by its own mean and variance, then scale and shift each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, Tolerance, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Operator):
    """out[r,c] = (x[r,c] - mean[r]) * rstd[r] * weight[c] + bias[c], with rstd = 1 / sqrt(variance + 1e-5).

    Mean and variance, the biased one, are of row r. `dtype` stores x and out; all else is float32.
    """

    rows: int
    cols: int
    dtype: str = "f32"

    epsilon: ClassVar[float] = 1e-5
    offset: ClassVar[float] = 100.0
    """The mean of every second row's inputs, whose deviation is 1: E[x²] - E[x]² would lose it."""
    special_inputs = {"x": ("zeros", "level", "far")}
    choices = {"dtype": ("f32", "bf16")}
    inputs: ClassVar[Mapping[str, str]] = {"x": "rows cols", "weight": "cols", "bias": "cols"}
    outputs: ClassVar[Mapping[str, str]] = {"out": "rows cols", "mean": "rows", "rstd": "rows"}
    library = "torch"
    integers_exact = False  # square roots are not whole

    @property
    def lanes(self) -> int:
        """Elements of the longest vector of up to 16 bytes that divides a row."""
        lanes = 8 if self.dtype == "bf16" else 4
        while self.cols % lanes:
            lanes //= 2
        return lanes

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the rows themselves."""
        return self.dtype if name in ("x", "out") else "f32"

    def flops(self) -> int:
        """Sum, difference, square and its sum, and three to normalise."""
        return 7 * self.rows * self.cols

    def reduction(self) -> int:
        """Elements of a row."""
        return self.cols

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; every second row has a mean of `offset`."""
        arrays = super().make_inputs(seed, integers)
        x = from_storage(arrays["x"], self.dtype)
        x[1::2] += self.offset
        arrays["x"] = to_storage(x, self.dtype)
        return arrays

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Arrays:
        """Compute the mean, then the mean square of the differences from it."""
        mean = x.mean(axis=1)
        centred = x - mean[:, None]
        rstd = 1.0 / np.sqrt((centred * centred).mean(axis=1) + self.epsilon)
        return {"out": centred * rstd[:, None] * weight + bias, "mean": mean, "rstd": rstd}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms, a difference's too.

        Of the variance it is what rounding each x once changes: the root of the sum of squares of 2 (x - mean) x,
        divided by cols. Where all x are the same, the square of the mean's error is all there is.
        """
        wide = self.widened(inputs)
        x = wide["x"]
        exact = self.reference(**wide)
        size = np.abs(x).mean(axis=1)
        centred = x - exact["mean"][:, None]
        variance = (centred * centred).mean(axis=1)
        moved = variance + 2 * np.sqrt(((centred * x) ** 2).sum(axis=1)) / self.cols
        moved += self.tolerance("f32").elementwise * size * size
        relative = 1 + 0.5 * moved / (variance + self.epsilon)
        factor = exact["rstd"][:, None] * np.abs(wide["weight"])
        out = (np.abs(x) + size[:, None] + np.abs(centred) * relative[:, None]) * factor + np.abs(wide["bias"])
        return {"out": out, "mean": size, "rstd": exact["rstd"] * relative}

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule; the norm allows what a mean of `offset` deviations costs, and short rows have no norm.

        The deviation of a few elements may be arbitrarily smaller than their mean; each element is still judged by the
        sizes of its own terms.
        """
        base = super().tolerance(precision)
        return Tolerance(base.elementwise, base.norm * self.offset if self.cols > 12 else 1.0)

    @classmethod
    def examples(cls) -> Sequence[LayerNorm]:
        """Rows of one element, shorter and longer than a warp and a block, divided by vectors and not."""
        shapes = [(1, 1), (5, 3), (7, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        return [cls(rows=rows, cols=cols, dtype=dtype) for dtype in ("f32", "bf16") for rows, cols in shapes]
