"""mse_loss: the mean squared difference from a target, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss


@dataclass(frozen=True, kw_only=True)
class MseLoss(MeanLoss):
    """loss = sum of (x[i] - target[i])^2 / (n * micro); dx[i] = 2 (x[i] - target[i]) / (n * micro).

    `micro` is the number of batches whose losses and gradients are added up in one step. `dtype` stores all but the
    loss, which is f32.
    """

    n: int
    micro: int = 1
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "far", "nan"), "target": ("ties",)}
    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"x": "n", "target": "n"}
    outputs = {"loss": "1", "dx": "n"}

    @property
    def integers_exact(self) -> bool:
        """Whether the mean is over so many that quotients of whole numbers, and their sums, are exact."""
        return 4096 % self.count == 0

    def flops(self) -> int:
        """Return the FLOPs: per element a difference, its square, an addition and a product."""
        return 4 * self.n

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        d = x - target
        return {"loss": np.sum(d * d, keepdims=True) / self.count, "dx": 2 * d / self.count}

    @classmethod
    def examples(cls) -> Sequence[MseLoss]:
        """Lengths of each remainder by 8, of one block and of several, and whole powers of two."""
        lengths = (1, 2, 3, 5, 64, 254, 1023, 4100, 4096, 40015)
        return [cls(n=n, micro=1 + i % 4, dtype=d) for d in ("f32", "bf16") for i, n in enumerate(lengths)]
