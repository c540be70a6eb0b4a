"""mma: multiply matrix tiles `rounds` times and sum the products; the probe of the tensor core rate."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tensor, Tolerance, UsageError

ROW_BYTES = 128
"""Bytes of depth in a row of either operand: four matrix instructions deep in every format."""

DIVISOR = 1024
"""Of the sums, exact in every format; the kernels have its inverse written into them."""

RESULTS = {"i8": "i32"}
"""The dtype of the results for operands of 8 bits."""

MOST_ROUNDS = 4095
"""Of i8: with numbers from -64 to 63, so many rounds stay within 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Mma(Operator):
    """out[t] = factor * (a[t] @ b[t].T) for each of `tiles` tiles of 64 x 256 outputs; `dtype` stores out, a and b.

    Operands stay in registers or shared memory for all rounds, so that only the tensor cores limit the rate. `factor`
    is rounds / 1024, which keeps the sums of a long run finite in f16. With operands="i8" and dtype="i32", a and b are
    of 8 bits and `factor` is `rounds`: the sums are exact.
    """

    tiles: int
    rounds: int
    operands: str = "as_out"
    dtype: str = "bf16"

    role = "probe"
    inputs = {"a": "tiles 64 depth", "b": "tiles 256 depth"}
    outputs = {"out": "tiles 64 256"}
    choices = {"operands": ("as_out", "i8"), "dtype": ("bf16", "f16", "f32", "i32")}

    def validate(self) -> None:
        """Refuse another dtype than that of the operands' sums, and sums of whole numbers that 32 bits do not hold."""
        allowed = [RESULTS[self.operands]] if self.operands in RESULTS else ["bf16", "f16", "f32"]
        if self.dtype not in allowed:
            raise UsageError(
                f"{self.name}: dtype={self.dtype} is not allowed with operands={self.operands}; use dtype="
                f"{' or '.join(allowed)}",
                kind="not-allowed",
                subject="dtype",
                value=self.dtype,
                allowed=tuple(allowed),
            )
        if self.operands == "i8" and self.rounds > MOST_ROUNDS:
            raise UsageError(
                f"{self.name}: rounds={self.rounds} is not allowed with operands=i8, because a sum of 32 bits would "
                f"overflow; use at most {MOST_ROUNDS} rounds",
                kind="not-allowed",
                subject="rounds",
                value=self.rounds,
                allowed=f"<= {MOST_ROUNDS}",
            )

    @property
    def depth(self) -> int:
        """Products per output in one round: a row of 128 bytes."""
        return ROW_BYTES if self.operands in RESULTS else ROW_BYTES // (4 if self.dtype == "f32" else 2)

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor."""
        return self.operands if name != "out" and self.operands in RESULTS else self.dtype

    def is_number(self, tensor: Tensor) -> bool:
        """Return that all tensors contain numbers."""
        return True

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs: normals, or whole numbers from -64 to 63 for i8."""
        if self.operands != "i8":
            return super().make_inputs(seed, integers)
        inputs = {}
        for tensor in self.input_tensors():
            rng = np.random.default_rng([seed, zlib.crc32(f"{self}/{tensor.name}".encode())])
            inputs[tensor.name] = rng.integers(-64, 64, tensor.shape, np.int8)
        return inputs

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * 64 * 256 * self.depth * self.tiles * self.rounds

    def reduction(self) -> int:
        """Return the number of products per output."""
        return max(1, self.rounds * self.depth)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Multiply once: all rounds add the same product."""
        factor = self.rounds if self.operands == "i8" else self.rounds / DIVISOR
        return factor * np.einsum("tmk,tnk->tmn", a, b)

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
        modes = [("as_out", "bf16"), ("as_out", "f16"), ("as_out", "f32"), *RESULTS.items()]
        return [cls(tiles=t, rounds=r, operands=o, dtype=d) for t, r in shapes for o, d in modes]
