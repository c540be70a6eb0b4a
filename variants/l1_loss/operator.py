"""l1_loss: the mean absolute difference from a target, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss


@dataclass(frozen=True, kw_only=True)
class L1Loss(MeanLoss):
    """loss = sum of |x[i] - target[i]| / (n * micro); dx[i] = sign(x[i] - target[i]) / (n * micro), with sign(0) = 0.

    `micro` is the number of batches whose losses and gradients are added up in one step. `dtype` stores all but the
    loss, which is f32.
    """

    n: int
    micro: int = 1
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "far"), "target": ("ties",)}
    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"x": "n", "target": "n"}
    outputs = {"loss": "1", "dx": "n"}

    @property
    def integers_exact(self) -> bool:
        """Whether the mean is over so many that quotients of whole numbers, and their sums, are exact."""
        return 4096 % self.count == 0

    def flops(self) -> int:
        """Return the FLOPs: per element a difference, its sign, its absolute value and an addition."""
        return 4 * self.n

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        d = x - target
        return {"loss": np.sum(np.abs(d), keepdims=True) / self.count, "dx": np.sign(d) / self.count}

    @classmethod
    def examples(cls) -> Sequence[L1Loss]:
        """Lengths of each remainder by 8, of one block and of several, and whole powers of two."""
        lengths = (1, 2, 3, 5, 64, 254, 1023, 4100, 4096, 40015)
        return [cls(n=n, micro=1 + i % 4, dtype=d) for d in ("f32", "bf16") for i, n in enumerate(lengths)]
