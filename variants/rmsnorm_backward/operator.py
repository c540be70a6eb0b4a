"""rmsnorm_backward: the gradient of rmsnorm, from its input and one number of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, Tolerance, from_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class RmsNormBackward(Operator):
    """dx = rstd * (g - xhat * mean of g * xhat), dweight = sum of dout * xhat, with xhat = x * rstd, g = dout * weight.

    The mean is over a row, the sum over all rows. With residual="add", x is the sum that the forward operator stored,
    and its gradient `dsum` from elsewhere is added to dx. `dtype` stores x, dout, dsum and dx; all else is float32.
    """

    rows: int
    cols: int
    dtype: str = "f32"
    residual: str = "none"

    epsilon: ClassVar[float] = 1e-5
    choices = {"dtype": ("f32", "bf16"), "residual": ("none", "add")}
    outputs: ClassVar[Mapping[str, str]] = {"dx": "rows cols", "dweight": "cols"}
    library = "torch"
    integers_exact = False  # reciprocal roots are not whole
    linear_in = ("dout",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the rows, a number per row and per column, and the gradient that is added."""
        added = {"dsum": "rows cols"} if self.residual == "add" else {}
        return {"x": "rows cols", "dout": "rows cols", "weight": "cols", "rstd": "rows", **added}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the rows themselves."""
        return self.dtype if name in ("x", "dout", "dsum", "dx") else "f32"

    def flops(self) -> int:
        """Return nine FLOPs per element (one to normalise, four for both sums, four for dx), and one for a residual."""
        return (9 + (self.residual == "add")) * self.rows * self.cols

    def reduction(self) -> int:
        """Return the elements of a row or column, at most 65536: longer sums are in blocks, so errors do not grow."""
        return min(max(self.rows, self.cols), 65536)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals with the number of each row that the forward operator computes."""
        arrays = super().make_inputs(seed, integers)
        x = from_storage(arrays["x"], self.dtype).astype(np.float64)
        arrays["rstd"] = (1.0 / np.sqrt((x * x).mean(axis=1) + self.epsilon)).astype(np.float32)
        return arrays

    def reference(
        self,
        x: np.ndarray,
        dout: np.ndarray,
        weight: np.ndarray,
        rstd: np.ndarray,
        dsum: np.ndarray | None = None,
    ) -> Arrays:
        """Compute the formulas as they stand."""
        xhat, slope = x * rstd[:, None], dout * weight
        dx = rstd[:, None] * (slope - xhat * (slope * xhat).mean(axis=1)[:, None])
        return {"dx": dx + (0.0 if dsum is None else dsum), "dweight": (dout * xhat).sum(axis=0)}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms."""
        wide = {name: np.abs(array) for name, array in self.widened(inputs).items()}
        xhat, slope = wide["x"] * wide["rstd"][:, None], wide["dout"] * wide["weight"]
        dx = wide["rstd"][:, None] * (slope + xhat * (slope * xhat).mean(axis=1)[:, None])
        dx = dx + wide["dsum"] if "dsum" in wide else dx
        return {"dx": dx, "dweight": (wide["dout"] * xhat).sum(axis=0)}

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule; rows of one element have no norm, as their dx is 0 but for the epsilon."""
        base = super().tolerance(precision)
        return base if self.cols > 1 else Tolerance(base.elementwise, 1.0)

    @classmethod
    def examples(cls) -> Sequence[RmsNormBackward]:
        """Rows of one element, shorter and longer than a warp and a block, divided by vectors and not; many rows."""
        shapes = [(1, 1), (5, 3), (600, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        modes = [(dtype, residual) for residual in cls.choices["residual"] for dtype in cls.choices["dtype"]]
        return [
            cls(rows=rows, cols=cols, dtype=dtype, residual=residual)
            for dtype, residual in modes
            for rows, cols in (shapes if residual == "none" else shapes[1::2] + shapes[-2:-1])
        ]
