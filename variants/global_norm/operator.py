"""global_norm: the Euclidean norm of a flat gradient, and the factor that clips it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator


@dataclass(frozen=True, kw_only=True)
class GlobalNorm(Operator):
    """norm = sqrt(sum of gradient[i]^2), factor = min(1, limit / (norm + 1e-6)): what the optimiser multiplies by."""

    n: int

    special_inputs = {"gradient": ("zeros", "far", "nan")}
    role = "training step"
    inputs = {"gradient": "n", "limit": "1"}
    outputs = {"norm": "1", "factor": "1"}
    library = "torch"
    integers_exact = False  # roots are not whole

    def flops(self) -> int:
        """Return two FLOPs per element, a square and its addition."""
        return 2 * self.n

    def reduction(self) -> int:
        """Return 1: squares are added up in two stages, whose error is a few roundings of their sum (as in `sum`)."""
        return 1

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """A seeded gradient, and a limit that clips it or not."""
        arrays = super().make_inputs(seed)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/limit".encode())])
        arrays["limit"] = np.array([self.n**0.5 * rng.choice([0.01, 0.5, 2.0])], np.float32)
        return arrays

    def reference(self, gradient: np.ndarray, limit: np.ndarray) -> Arrays:
        """In float64."""
        norm = np.sqrt(np.sum(gradient * gradient, keepdims=True))
        return {"norm": norm, "factor": np.minimum(1.0, limit / (norm + 1e-6))}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The results themselves: squares, and a limit above 0."""
        return self.reference_outputs(inputs)

    @classmethod
    def examples(cls) -> Sequence[GlobalNorm]:
        """One element, primes around a warp and a block, whole powers of two, lengths of several blocks, and of more
        blocks than the second kernel has threads."""
        return [cls(n=n) for n in (1, 2, 3, 31, 33, 127, 1021, 2048, 4099, 65537, 300007, 600011)]
