"""layernorm: normalise each row by its own mean and variance, then scale and shift each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Gradient, Operator, Tolerance, from_storage, passed_on, rounded, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Operator):
    """out[r,c] = (x[r,c] - mean[r]) * rstd[r] * weight[c] + bias[c], with rstd = 1 / sqrt(variance + 1e-5).

    Mean and variance, the biased one, are of row r. With residual="add", `sum` = x + residual is an output too, and is
    normalised as it is stored. `dtype` stores x, residual, sum and out; all else is float32.
    """

    rows: int
    cols: int
    dtype: str = "f32"
    residual: str = "none"

    epsilon: ClassVar[float] = 1e-5
    offset: ClassVar[float] = 100.0
    """The mean of every second row's inputs, whose deviation is 1: E[x²] - E[x]² would lose it."""
    special_inputs = {"x": ("zeros", "level", "far", "nan")}
    choices = {"dtype": ("f32", "bf16"), "residual": ("none", "add")}
    library = "torch"
    integers_exact = False  # square roots are not whole

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the rows, what is added to them, and two numbers per column."""
        added = {"residual": "rows cols"} if self.residual == "add" else {}
        return {"x": "rows cols", **added, "weight": "cols", "bias": "cols"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the rows, the two numbers per row that the gradient needs, and the sum."""
        added = {"sum": "rows cols"} if self.residual == "add" else {}
        return {"out": "rows cols", "mean": "rows", "rstd": "rows", **added}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the rows themselves."""
        return self.dtype if name in ("x", "residual", "sum", "out") else "f32"

    def flops(self) -> int:
        """Return seven FLOPs per element: four for both sums, three to normalise; and one more with a residual."""
        return (7 + (self.residual == "add")) * self.rows * self.cols

    def reduction(self) -> int:
        """Return the number of elements of a row."""
        return self.cols

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; every second row has a mean of `offset`."""
        arrays = super().make_inputs(seed, integers)
        x = from_storage(arrays["x"], self.dtype)
        x[1::2] += self.offset
        arrays["x"] = to_storage(x, self.dtype)
        return arrays

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """All at once: dx needs sums over the rows that dweight and dbias read."""
        if not wanted & {"x", "residual", "weight", "bias"}:
            return []
        tensors = {name: name for name in ("x", "weight", "mean", "rstd")} | {"dout": "d.out"}
        given = {"dx": "d.x", "dweight": "d.weight", "dbias": "d.bias"}
        if self.residual == "none":
            return [Gradient("layernorm_backward", self.axes, tensors, given)]
        tensors |= {"x": "sum", "dsum": "d.sum"}
        return [Gradient("layernorm_backward", self.axes, tensors, given), *passed_on("d.x", "d.residual")]

    def _stored(self, total: np.ndarray) -> np.ndarray:
        """Return sums as they are stored: bf16 may keep nothing of a deviation that is small next to the mean."""
        return rounded(total, "bf16") if self.dtype == "bf16" else total

    def reference(
        self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, residual: np.ndarray | None = None
    ) -> Arrays:
        """Compute the mean, then the mean square of the differences from it."""
        total = x if residual is None else self._stored(x + residual)
        mean = total.mean(axis=1)
        centred = total - mean[:, None]
        rstd = 1.0 / np.sqrt((centred * centred).mean(axis=1) + self.epsilon)
        found = {"out": centred * rstd[:, None] * weight + bias, "mean": mean, "rstd": rstd}
        return found if residual is None else {**found, "sum": total}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms, a difference's too.

        Of the variance it is what rounding each element once changes: the root of the sum of squares of
        2 (x - mean) x, divided by cols. Where all x are the same, the square of the mean's error is all there is.
        """
        wide = self.widened(inputs)
        exact = self.reference(**wide)
        terms = np.abs(wide["x"])
        centred = exact.get("sum", wide["x"]) - exact["mean"][:, None]
        if self.residual == "add":
            terms = terms + np.abs(wide["residual"])
        size = terms.mean(axis=1)
        variance = (centred * centred).mean(axis=1)
        moved = variance + 2 * np.sqrt(((centred * terms) ** 2).sum(axis=1)) / self.cols
        moved += self.tolerance("f32").elementwise * size * size
        relative = 1 + 0.5 * moved / (variance + self.epsilon)
        factor = exact["rstd"][:, None] * np.abs(wide["weight"])
        out = (terms + size[:, None] + np.abs(centred) * relative[:, None]) * factor + np.abs(wide["bias"])
        found = {"out": out, "mean": size, "rstd": exact["rstd"] * relative}
        return found | ({"sum": terms} if self.residual == "add" else {})

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
        modes = [(dtype, residual) for residual in cls.choices["residual"] for dtype in cls.choices["dtype"]]
        return [
            cls(rows=rows, cols=cols, dtype=dtype, residual=residual)
            for dtype, residual in modes
            for rows, cols in (shapes if residual == "none" else shapes[1::2] + shapes[-2:-1])
        ]
