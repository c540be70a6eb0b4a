"""sigmoid_cross_entropy: the mean cross entropy of logits with targets from 0 to 1, and its gradient."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class SigmoidCrossEntropy(MeanLoss):
    """loss = sum of max(x, 0) - x t + log(1 + exp(-|x|)) over logits x and targets t, / (n * micro).

    dlogits, its gradient, is (1 / (1 + exp(-x)) - t) / (n * micro).

    `micro` is the number of batches whose losses and gradients are added up in one step. `dtype` stores all but the
    loss, which is f32.
    """

    n: int
    micro: int = 1
    dtype: str = "f32"

    special_inputs = {"logits": ("zeros", "far", "nan")}
    choices = {"dtype": ("f32", "bf16")}
    inputs = {"logits": "n", "target": "n"}
    outputs = {"loss": "1", "dlogits": "n"}
    integers_exact = False  # exponentials are not whole

    def flops(self) -> int:
        """Return the FLOPs: per element an exponential, a logarithm, a quotient, and sums and products of them."""
        return 10 * self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded logits, some of them large, targets 0, 1 and between; at times all 0, and all logits sure.

        Of the sure ones the loss is all in the logarithms, next to 0.
        """
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/target".encode())])
        logits = from_storage(arrays["logits"], self.dtype) * rng.choice(np.float32([1, 8]), self.n)
        target = np.clip(rng.uniform(-0.5, 1.5, self.n), 0, 1).astype(np.float32)
        if rng.random() < 0.25:
            logits, target = rng.uniform(-20, -8, self.n).astype(np.float32), np.zeros(self.n, np.float32)
        return {"logits": to_storage(logits, self.dtype), "target": to_storage(target, self.dtype)}

    def reference(self, logits: np.ndarray, target: np.ndarray) -> Arrays:
        """In float64, in the form that no exponential overflows."""
        e = np.exp(-np.abs(logits))
        losses = np.maximum(logits, 0) - logits * target + np.log1p(e)
        p = np.where(logits >= 0, 1, e) / (1 + e)
        return {"loss": np.sum(losses, keepdims=True) / self.count, "dlogits": (p - target) / self.count}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Terms by their sizes; an error of an exponent, of 1 + its size, is a relative error of its exponential."""
        x, t = self.widened(inputs).values()
        e = np.exp(-np.abs(x)) * (1 + np.abs(x))
        losses = np.maximum(x, 0) + np.abs(x) * t + e + np.log1p(np.exp(-np.abs(x)))
        p = np.where(x >= 0, 1, e) + t
        return {"loss": np.sum(losses, keepdims=True) / self.count * self.share_of_f32(), "dlogits": p / self.count}

    @classmethod
    def examples(cls) -> Sequence[SigmoidCrossEntropy]:
        """Lengths of each remainder by 8, of one block and of several, and whole powers of two."""
        lengths = (1, 2, 3, 5, 64, 254, 1023, 4100, 4096, 40015)
        return [cls(n=n, micro=1 + i % 4, dtype=d) for d in ("f32", "bf16") for i, n in enumerate(lengths)]
