"""kl_div_loss: the Kullback-Leibler divergence of rows of probabilities, its mean over rows, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class KlDivLoss(MeanLoss):
    """loss = sum of target * (log(target) - log(p)) / (rows * micro), with 0 log 0 = 0, and its gradient dx.

    With x_scale "log", x holds log(p), as PyTorch's kl_div wants it; with "linear" it holds p, and dx is the gradient
    with respect to p. The mean is over rows (batchmean). `micro` is the number of batches whose losses and gradients
    are added up in one step. `dtype` stores all but the loss, which is f32.
    """

    rows: int
    cols: int
    micro: int = 1
    x_scale: str = "log"
    dtype: str = "f32"

    special_inputs = {"target": ("zeros", "nan")}
    choices = {"x_scale": ("log", "linear"), "dtype": ("f32", "bf16")}
    inputs = {"x": "rows cols", "target": "rows cols"}
    integers_exact = False  # logarithms are not whole
    library = "torch"
    outputs = {"loss": "1", "dx": "rows cols"}

    @property
    def n(self) -> int:
        """Elements of x."""
        return self.rows * self.cols

    @property
    def count(self) -> int:
        """Number of elements that the mean is over."""
        return self.rows * self.micro

    def flops(self) -> int:
        """Return the FLOPs: per element two logarithms, a difference, a product, an addition and a quotient."""
        return 6 * self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded positive numbers near 1 for target and p; rows need not add up to 1 for the formula."""
        arrays = super().make_inputs(seed, integers)
        numbers = {name: from_storage(array, self.dtype) / 2 for name, array in arrays.items()}
        x = numbers["x"] if self.x_scale == "log" else np.exp(numbers["x"])
        return {"x": to_storage(x, self.dtype), "target": to_storage(np.exp(numbers["target"]), self.dtype)}

    def reference(self, x: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64."""
        log_x = x if self.x_scale == "log" else np.log(x)
        log_target = np.log(np.where(target > 0, target, 1))
        slope = -target if self.x_scale == "log" else -target / x
        loss = np.sum(target * (log_target - log_x), keepdims=True).reshape(1)
        return {"loss": loss / self.count, "dx": slope / self.count}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Terms by their sizes, since both logarithms are rounded before they cancel; gradients by their own."""
        x, target = (self.widened(inputs)[name] for name in ("x", "target"))
        log_x = np.abs(x if self.x_scale == "log" else np.log(x))
        terms = target * (np.abs(np.log(np.where(target > 0, target, 1))) + log_x)
        own = np.abs(self.reference_outputs(inputs)["dx"])
        return {"loss": np.sum(terms, keepdims=True).reshape(1) / self.count * self.share_of_f32(), "dx": own}

    @classmethod
    def examples(cls) -> Sequence[KlDivLoss]:
        """Elements of each remainder by 8, of one block and of several, and whole powers of two, in both scales."""
        shapes = [(1, 1), (2, 1), (1, 3), (5, 1), (4, 16), (2, 127), (3, 341), (41, 100), (64, 64), (5, 8003)]
        return [
            cls(rows=rows, cols=cols, micro=1 + i % 4, x_scale=scale, dtype=d)
            for d in ("f32", "bf16")
            for i, (rows, cols) in enumerate(shapes)
            for scale in cls.choices["x_scale"]
        ]
