"""reduce_backward: the gradient of a sum, mean or norm along one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class ReduceBackward(Operator):
    """dx[o,a,i] = dout[o,i] times the slope of the reduction `op` in x[o,a,i].

    The slope is 1 for sum, 1 / axis for mean, the sign of x for l1, and x / out for l2. The sign of 0 is 0. If the norm
    `out` is 0, dx is 0, as in PyTorch. `dtype` stores all tensors; l1 reads x, l2 x and out, the others only dout.
    """

    outer: int
    axis: int
    inner: int = 1
    op: str = "sum"
    dtype: str = "f32"

    choices = {"op": ("sum", "mean", "l1", "l2"), "dtype": ("f32", "bf16")}
    outputs = {"dx": "outer axis inner"}
    library = "torch"
    degree = 1

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the gradient of the results, and what a norm's slope depends on."""
        known = {"x": "outer axis inner", "out": "outer inner"}
        needed = {"l1": ("x",), "l2": ("x", "out")}.get(self.op, ())
        return {**{name: known[name] for name in needed}, "dout": "outer inner"}

    @property
    def special_inputs(self) -> Mapping[str, Sequence[str]]:
        """Return zeros and NaN for what the slope depends on."""
        return {name: ("zeros", "nan") for name in ("x", "out") if name in self.inputs}

    @property
    def integers_exact(self) -> bool:
        """Means and quotients are not whole."""
        return self.op in ("sum", "l1")

    @property
    def elements(self) -> int:
        """Of dx."""
        return self.outer * self.axis * self.inner

    @property
    def lanes(self) -> int:
        """Elements of the longest vector of up to 16 bytes that divides a row: of dx if inner = 1, else of `inner`."""
        return vector_width(self.dtype, self.axis if self.inner == 1 else self.inner)

    def flops(self) -> int:
        """One per element, but none for a sum, whose gradient is copied."""
        return 0 if self.op == "sum" else self.elements

    def reduction(self) -> int:
        """Nothing is summed."""
        return 1

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals, and the norm of x as `out`."""
        arrays = super().make_inputs(seed, integers)
        if "out" in arrays:
            x = from_storage(arrays["x"], self.dtype).astype(np.float64)
            arrays["out"] = to_storage(np.sqrt((x * x).sum(axis=1)).astype(np.float32), self.dtype)
        return arrays

    def reference(self, dout: np.ndarray, x: np.ndarray | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Broadcast the gradient along the axis and multiply by the slope."""
        spread = dout[:, None, :]
        if x is None:
            shape = (self.outer, self.axis, self.inner)
            return np.broadcast_to(spread / self.axis if self.op == "mean" else spread, shape) + 0.0
        if out is None:
            return ((x > 0) * 1.0 - (x < 0)) * spread  # 0 for NaN, as in PyTorch
        zero = out == 0
        return x * np.where(zero, 0.0, dout / np.where(zero, 1.0, out))[:, None, :]

    @classmethod
    def examples(cls) -> Sequence[ReduceBackward]:
        """Rows and columns, whole blocks and odd ones, in every mode."""
        shapes = [(1, 1, 1), (3, 5, 1), (7, 33, 1), (16, 64, 1), (3, 1030, 1), (2, 7, 3), (3, 64, 24), (2, 33, 64)]
        return [
            cls(outer=outer, axis=axis, inner=inner, op=op, dtype=dtype)
            for op in cls.choices["op"]
            for dtype in cls.choices["dtype"]
            for outer, axis, inner in shapes
        ]
