"""int4_matmul: out = a @ weight on bf16 and weights of 4 bits, with a scale per group of 128 weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, UsageError, matrix_product

GROUP = 128
"""Weights along k that share a scale."""


@dataclass(frozen=True, kw_only=True)
class Int4Matmul(Operator):
    """out[m, n] = sum over k of a[m, k] * (weight[n, k] - 8) * scale[k / 128, n]; all but weight in bf16.

    A byte of weight holds two numbers from 0 to 15: of an even k in the lower 4 bits, of the next k in the upper 4.
    """

    m: int
    n: int
    k: int

    degree = 2
    inputs = {"a": "m k", "weight": "n k_bytes", "scale": "groups n"}
    outputs = {"out": "m n"}

    def validate(self) -> None:
        """Refuse an odd k, whose last byte would be half full."""
        if self.k % 2:
            raise UsageError(
                f"{self.name}: k={self.k} is not allowed, because a byte holds two weights; use an even k",
                kind="not-allowed",
                subject="k",
                value=self.k,
                allowed="even",
            )

    @property
    def k_bytes(self) -> int:
        """The bytes of a row of weights."""
        return self.k // 2

    @property
    def groups(self) -> int:
        """The number of groups along k; the last one may be smaller."""
        return -(-self.k // GROUP)

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor; two weights are one u8."""
        return "u8" if name == "weight" else "bf16"

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def weights(self, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the weights as numbers, [n][k]."""
        numbers = np.stack((weight % 16, weight // 16), axis=-1).reshape(self.n, self.k) - 8
        return numbers * np.repeat(scale.T, GROUP, axis=1)[:, : self.k]

    def reference(self, a: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The product with the weights as numbers by NumPy."""
        return matrix_product(a, self.weights(weight, scale).T)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the product of absolute values."""
        wide = self.widened(inputs)
        return {"out": abs(wide["a"]) @ abs(self.weights(wide["weight"], wide["scale"])).T}

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs: all weights, and positive scales, powers of two if a has whole numbers."""
        inputs = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/weight".encode())])
        inputs["weight"] = rng.integers(0, 256, (self.n, self.k_bytes), np.uint8)
        exponents = rng.integers(-2, 2, (self.groups, self.n))
        fractions = 1 if integers else 1 + rng.integers(0, 128, exponents.shape) / 128
        values = (np.exp2(exponents) * fractions).astype(np.float32)
        inputs["scale"] = (values.view(np.uint32) >> 16).astype(np.uint16)  # exact in bf16
        return inputs

    @classmethod
    def examples(cls) -> Sequence[Int4Matmul]:
        """Ones, primes, whole tiles and not, several groups, many tiles, rows 16-byte aligned and not."""
        sizes = [
            (1, 1, 2),
            (2, 3, 6),
            (17, 31, 34),
            (33, 65, 262),
            (1, 128, 256),
            (16, 130, 160),
            (64, 128, 256),
            (131, 264, 288),
            (1, 520, 64),
        ]
        return [cls(m=m, n=n, k=k) for m, n, k in sizes]
