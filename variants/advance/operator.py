"""advance: increment a counter on the device."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Advance(Operator):
    """new_count = count + stride, of which micro-batch a rank of `stride` ranks trains next."""

    stride: int

    role = "training step"
    inputs = {"count": "1"}
    outputs = {"new_count": "1"}
    in_place = {"new_count": "count"}

    def tensor_dtype(self, name: str) -> str:
        """All are whole numbers."""
        return "i32"

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Before the first, which may be below 0, and after many."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        return {"count": rng.integers(1 - self.stride, 100_000, 1, np.int32)}

    def reference(self, count: np.ndarray) -> np.ndarray:
        """The sum."""
        return count + self.stride

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: whole numbers."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Advance]:
        """One rank and several."""
        return [cls(stride=stride) for stride in (1, 2, 3, 5, 8)]
