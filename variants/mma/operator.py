"""mma: multiply matrix tiles `rounds` times and sum the products; the probe of the tensor core rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance

ROW_BYTES = 128
"""Bytes of depth in a row of either operand: four matrix instructions deep in every format."""

DIVISOR = 1024
"""Of the sums, exact in every format; the kernels have its inverse written into them."""


@dataclass(frozen=True, kw_only=True)
class Mma(Operator):
    """out[t] = rounds / 1024 * (a[t] @ b[t].T) for each of `tiles` tiles of 64 x 256 outputs.

    Operands stay in registers or shared memory for all rounds, so that only the tensor cores limit the rate. The
    division keeps the sums of a long run finite in f16.
    """

    tiles: int
    rounds: int
    dtype: str = "bf16"

    role = "probe"
    inputs = {"a": "tiles 64 depth", "b": "tiles 256 depth"}
    outputs = {"out": "tiles 64 256"}
    choices = {"dtype": ("bf16", "f16", "f32")}

    @property
    def depth(self) -> int:
        """Products per output in one round: a row of 128 bytes."""
        return ROW_BYTES // (4 if self.dtype == "f32" else 2)

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * 64 * 256 * self.depth * self.tiles * self.rounds

    def reduction(self) -> int:
        """Return the number of products per output."""
        return max(1, self.rounds * self.depth)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Multiply once: all rounds add the same product."""
        return self.rounds / DIVISOR * np.einsum("tmk,tnk->tmn", a, b)

    def tolerance(self, precision: str) -> Tolerance:
        """Allow what the base class does, and 2^-23 per instruction that adds to a sum.

        Tensor cores round their sums towards zero, so these errors add up in one direction (Fasi et al., Numerical
        behavior of NVIDIA tensor cores, 2021).
        """
        base = super().tolerance(precision)
        truncated = self.reduction() / 8 * 2.0**-23
        return Tolerance(elementwise=base.elementwise + truncated, norm=base.norm + truncated)

    @classmethod
    def examples(cls) -> Sequence[Mma]:
        """Return few tiles and rounds around the unrolled loops' lengths, none included."""
        shapes = [(1, 1), (2, 0), (3, 2), (1, 5), (2, 8), (5, 3)]
        return [cls(tiles=t, rounds=r, dtype=d) for t, r in shapes for d in ("bf16", "f16", "f32")]
