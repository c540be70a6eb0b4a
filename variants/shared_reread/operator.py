"""shared_reread: read an array `rounds` times from shared memory; the probe of shared memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class SharedReread(Operator):
    """out[0] = max of x over n elements, each read `rounds` times.

    `bytes()` counts all n * rounds reads: they are meant to come from shared memory, which a multiprocessor's L1 cache
    and shared memory deliver at one rate.
    """

    n: int
    rounds: int = 1

    degree = 1
    role = "probe"
    inputs = {"x": "n"}
    outputs = {"out": "1"}
    memory_level = "l1"

    def bytes(self) -> int:
        return 4 * self.n * self.rounds

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.max(x, keepdims=True)

    def tolerance(self, precision: str) -> Tolerance:
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[SharedReread]:
        return [cls(n=n, rounds=rounds) for n, rounds in ((1, 1), (3, 2), (31, 5), (1021, 2), (4099, 3), (8192, 4))]
