"""accumulate: add the gradients of one micro-batch to a running sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class Accumulate(Operator):
    """new_total[i] = total[i] + part[i], each sum rounded once: what ranks give that add theirs in their order."""

    n: int

    special_inputs = {"total": ("tiny", "infinite"), "part": ("tiny",)}
    role = "training step"
    inputs = {"total": "n", "part": "n"}
    outputs = {"new_total": "n"}
    in_place = {"new_total": "total"}

    def flops(self) -> int:
        """Return one FLOP per element."""
        return self.n

    def reference(self, total: np.ndarray, part: np.ndarray) -> np.ndarray:
        """NumPy's own sum."""
        return total + part

    @classmethod
    def examples(cls) -> Sequence[Accumulate]:
        """One element, primes around a vector and a block, and lengths that need several blocks."""
        return [cls(n=n) for n in (1, 2, 3, 5, 31, 127, 1021, 2048, 4099, 65537)]
