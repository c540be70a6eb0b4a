"""int8_matmul: out = a @ b on whole numbers of 8 bits, with sums of 32 bits."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tensor, Tolerance, UsageError, matrix_product

MOST_K = 2**17 - 1
"""The largest k whose sums fit 32 bits for all inputs: a product is at most 2**14."""


@dataclass(frozen=True, kw_only=True)
class Int8Matmul(Operator):
    """out[m, n] = sum over k of a[m, k] * b[n, k]; k is contiguous in both operands. Results are exact."""

    m: int
    n: int
    k: int

    inputs = {"a": "m k", "b": "n k"}
    outputs = {"out": "m n"}
    library = "torch"

    def validate(self) -> None:
        """Refuse a k whose sums may be larger than 32 bits hold."""
        if self.k > MOST_K:
            raise UsageError(
                f"{self.name}: k={self.k} is not allowed, because a sum of 32 bits holds at most {MOST_K} products; "
                f"use a k of at most {MOST_K}",
                kind="not-allowed",
                subject="k",
                value=self.k,
                allowed=f"<= {MOST_K}",
            )

    @property
    def storage(self) -> str:
        """The dtype of the sums, which make results exact."""
        return "i32"

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor."""
        return "i32" if name == "out" else "i8"

    def is_number(self, tensor: Tensor) -> bool:
        """Return that all tensors contain numbers."""
        return True

    def flops(self) -> int:
        """Return two operations per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product by NumPy in float64, which represents all sums."""
        return matrix_product(a, b.T)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: sums of whole numbers are not rounded."""
        return Tolerance(0.0, 0.0)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded numbers: all of 8 bits, or -8 to 8."""
        least, most = (-8, 8) if integers else (-128, 127)
        found = {}
        for tensor in self.input_tensors():
            rng = np.random.default_rng([seed, zlib.crc32(f"{self}/{tensor.name}".encode())])
            found[tensor.name] = rng.integers(least, most, tensor.shape, np.int8, endpoint=True)
        return found

    @classmethod
    def examples(cls) -> Sequence[Int8Matmul]:
        """Ones, primes, whole tiles and not, many tiles, rows 16-byte aligned and not."""
        sizes = [
            (1, 1, 1),
            (2, 3, 5),
            (1, 129, 17),
            (17, 31, 33),
            (33, 65, 260),
            (129, 1, 64),
            (64, 128, 256),
            (131, 264, 272),
            (1, 776, 64),
        ]
        return [cls(m=m, n=n, k=k) for m, n, k in sizes]
