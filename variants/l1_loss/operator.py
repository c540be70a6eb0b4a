"""l1_loss: the mean absolute difference from a target, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, UsageError


@dataclass(frozen=True, kw_only=True)
class L1Loss(Operator):
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
    def count(self) -> int:
        """Number of elements that the mean is over."""
        return self.n * self.micro

    @property
    def integers_exact(self) -> bool:
        """Whether the mean is over so many that quotients of whole numbers, and their sums, are exact."""
        return 4096 % self.count == 0

    def share_of_f32(self) -> float:
        """Of what is allowed of stored gradients, the share that a loss in f32 has."""
        return 8 * UNIT_ROUNDOFF["f32"] / self.tolerance("f32").elementwise

    def validate(self) -> None:
        """Refuse a mean over no batch."""
        if self.micro < 1:
            raise UsageError(f"{self}: micro={self.micro} is not allowed; at least 1")

    def tensor_dtype(self, name: str) -> str:
        """A loss is f32 always."""
        return "f32" if name == "loss" else self.dtype

    def flops(self) -> int:
        """Return the FLOPs: per element a difference, its sign, its absolute value and an addition."""
        return 4 * self.n

    def reduction(self) -> int:
        """Return 1: losses are added up in two stages, whose error is a few roundings of their sum (as in `sum`)."""
        return 1

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        d = x - target
        return {"loss": np.sum(np.abs(d), keepdims=True) / self.count, "dx": np.sign(d) / self.count}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The results' own sizes: a difference of two inputs is rounded once, however much of them cancels."""
        found = {name: np.abs(array) for name, array in self.reference_outputs(inputs).items()}
        return {**found, "loss": found["loss"] * self.share_of_f32()}

    @classmethod
    def examples(cls) -> Sequence[L1Loss]:
        """Lengths of each remainder by 8, of one block and of several, and whole powers of two."""
        lengths = (1, 2, 3, 5, 64, 254, 1023, 4100, 4096, 40015)
        return [cls(n=n, micro=1 + i % 4, dtype=d) for d in ("f32", "bf16") for i, n in enumerate(lengths)]
