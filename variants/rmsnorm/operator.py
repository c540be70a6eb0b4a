"""rmsnorm: divide each row by the root of its mean square, then scale each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Gradient, Operator, passed_on, rounded, vector_width


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Operator):
    """out[r,c] = x[r,c] * rstd[r] * weight[c], with rstd = 1 / sqrt(mean of the squares of row r + 1e-5).

    With residual="add", `sum` = x + residual is an output too, and is normalised as it is stored. `dtype` stores x,
    residual, sum and out; all else is float32.
    """

    rows: int
    cols: int
    dtype: str = "f32"
    residual: str = "none"

    epsilon: ClassVar[float] = 1e-5
    special_inputs = {"x": ("zeros", "level", "far", "nan")}
    choices = {"dtype": ("f32", "bf16"), "residual": ("none", "add")}
    library = "torch"
    integers_exact = False  # square roots are not whole

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the rows, what is added to them, and a number per column."""
        added = {"residual": "rows cols"} if self.residual == "add" else {}
        return {"x": "rows cols", **added, "weight": "cols"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the rows, the number per row that the gradient needs, and the sum."""
        added = {"sum": "rows cols"} if self.residual == "add" else {}
        return {"out": "rows cols", "rstd": "rows", **added}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the rows themselves."""
        return self.dtype if name in ("x", "residual", "sum", "out") else "f32"

    def flops(self) -> int:
        """Return four FLOPs per element (a square, its sum, two to normalise), and one for a residual."""
        return (4 + (self.residual == "add")) * self.rows * self.cols

    def reduction(self) -> int:
        """Return the number of elements of a row."""
        return self.cols

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """All at once: dx needs sums over the rows that dweight reads."""
        if not wanted & {"x", "residual", "weight"}:
            return []
        tensors = {name: name for name in ("x", "weight", "rstd")} | {"dout": "d.out"}
        given = {"dx": "d.x", "dweight": "d.weight"}
        if self.residual == "none":
            return [Gradient("rmsnorm_backward", self.axes, tensors, given)]
        tensors |= {"x": "sum", "dsum": "d.sum"}
        return [Gradient("rmsnorm_backward", self.axes, tensors, given), *passed_on("d.x", "d.residual")]

    def _stored(self, total: np.ndarray) -> np.ndarray:
        """Return sums as they are stored: bf16 rounds them."""
        return rounded(total, "bf16") if self.dtype == "bf16" else total

    def reference(self, x: np.ndarray, weight: np.ndarray, residual: np.ndarray | None = None) -> Arrays:
        """Compute the mean square, then the quotient."""
        total = x if residual is None else self._stored(x + residual)
        rstd = 1.0 / np.sqrt((total * total).mean(axis=1) + self.epsilon)
        found = {"out": total * rstd[:, None] * weight, "rstd": rstd}
        return found if residual is None else {**found, "sum": total}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sizes of the terms; of the mean square what rounding each element once changes."""
        wide = self.widened(inputs)
        exact = self.reference(**wide)
        terms, total = np.abs(wide["x"]), np.abs(exact.get("sum", wide["x"]))
        if self.residual == "add":
            terms = terms + np.abs(wide["residual"])
        square = (total * total).mean(axis=1)
        moved = square + 2 * np.sqrt(((total * terms) ** 2).sum(axis=1)) / self.cols
        relative = 1 + 0.5 * moved / (square + self.epsilon)
        out = (terms + total * relative[:, None]) * exact["rstd"][:, None] * np.abs(wide["weight"])
        found = {"out": out, "rstd": exact["rstd"] * relative}
        return found | ({"sum": terms} if self.residual == "add" else {})

    @classmethod
    def examples(cls) -> Sequence[RmsNorm]:
        """Rows of one element, shorter and longer than a warp and a block, divided by vectors and not."""
        shapes = [(1, 1), (5, 3), (7, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        modes = [(dtype, residual) for residual in cls.choices["residual"] for dtype in cls.choices["dtype"]]
        return [
            cls(rows=rows, cols=cols, dtype=dtype, residual=residual)
            for dtype, residual in modes
            for rows, cols in (shapes if residual == "none" else shapes[1::2] + shapes[-2:-1])
        ]
