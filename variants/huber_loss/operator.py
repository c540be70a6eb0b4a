"""huber_loss: the mean of squares of small and sizes of large differences from a target, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss


@dataclass(frozen=True, kw_only=True)
class HuberLoss(MeanLoss):
    """loss = sum of h(x[i] - target[i]) / (n * micro), with h(d) = d^2 / 2 if |d| < 1, else |d| - 1/2; also dx.

    PyTorch calls it smooth_l1_loss with beta = 1. `micro` is the number of batches whose losses and gradients are added
    up in one step. `dtype` stores all but the loss, which is f32.
    """

    n: int
    micro: int = 1
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "far", "nan"), "target": ("ties",)}
    choices = {"dtype": ("f32", "bf16")}
    inputs = {"x": "n", "target": "n"}
    library = "torch"
    outputs = {"loss": "1", "dx": "n"}

    @property
    def integers_exact(self) -> bool:
        """Whether the mean is over so many that quotients of halves of whole numbers, and their sums, are exact."""
        return 2048 % self.count == 0

    def flops(self) -> int:
        """Return the FLOPs: per element a difference, its size, its square and an addition."""
        return 4 * self.n

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        d = x - target
        size, slope = np.abs(d), np.clip(d, -1, 1)
        losses = np.where(size < 1, d * d / 2, size - 0.5)
        return {"loss": np.sum(losses, keepdims=True) / self.count, "dx": slope / self.count}

    @classmethod
    def examples(cls) -> Sequence[HuberLoss]:
        """Lengths of each remainder by 8, of one block and of several, and whole powers of two."""
        lengths = (1, 2, 3, 5, 64, 254, 1023, 4100, 4096, 40015)
        return [cls(n=n, micro=1 + i % 4, dtype=d) for d in ("f32", "bf16") for i, n in enumerate(lengths)]
