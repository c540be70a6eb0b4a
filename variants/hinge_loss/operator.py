"""hinge_loss: the mean of how far predictions fall short of a margin, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class HingeLoss(MeanLoss):
    """loss = sum of max(0, 1 - x[r,c] * target[c]) / (rows * cols * micro), and its gradient dx; targets are 1 or -1.

    All rows have the same targets; one row is the usual case. Where the margin is met exactly, the slope is that of
    clamp in PyTorch, -target. `micro` is the number of batches whose losses and gradients are added up in one step.
    `dtype` stores all but the loss, which is f32.
    """

    rows: int
    cols: int
    micro: int = 1
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "far", "nan")}
    choices = {"dtype": ("f32", "bf16")}
    inputs = {"x": "rows cols", "target": "cols"}
    library = "torch"
    outputs = {"loss": "1", "dx": "rows cols"}

    @property
    def n(self) -> int:
        """Elements of x."""
        return self.rows * self.cols

    @property
    def integers_exact(self) -> bool:
        """Whether the mean is over so many that quotients of whole numbers, and their sums, are exact."""
        return 4096 % self.count == 0

    def flops(self) -> int:
        """Return the FLOPs: per element a product, a difference, a maximum and an addition."""
        return 4 * self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded predictions, and signs as targets."""
        arrays = super().make_inputs(seed, integers)
        signs = np.where(from_storage(arrays["target"], self.dtype) < 0, np.float32(-1), np.float32(1))
        return {**arrays, "target": to_storage(signs, self.dtype)}

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        margin = 1 - x * target
        slope = np.where(margin >= 0, -target, 0 * target)
        return {"loss": np.sum(np.maximum(margin, 0), keepdims=True).reshape(1) / self.count, "dx": slope / self.count}

    @classmethod
    def examples(cls) -> Sequence[HingeLoss]:
        """One row of each remainder by 8, several rows, of one block and of several, and whole powers of two."""
        shapes = [(1, n) for n in (1, 2, 3, 5, 64, 254, 1023, 4096)] + [
            (3, 5),
            (7, 64),
            (64, 64),
            (5, 8003),
            (33, 1208),
        ]
        return [
            cls(rows=rows, cols=cols, micro=1 + i % 4, dtype=d)
            for d in ("f32", "bf16")
            for i, (rows, cols) in enumerate(shapes)
        ]
