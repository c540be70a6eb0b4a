"""scaled_matmul: out = a @ b on floats of 8 bits, with float scales, rounded to bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, Tolerance, matrix_product

BLOCK = 128
"""Elements along k, and along n, that share a scale with scaling "block"."""
TENSOR_CORE_ROUNDOFF = 2.0**-13
"""Hopper's tensor cores align the products of 8-bit floats, and the sum so far, to the largest of them, and keep 13
bits behind its first digit (DeepSeek-V3 Technical Report, 2024, section 3.5.2)."""


@dataclass(frozen=True, kw_only=True)
class ScaledMatmul(Operator):
    """out[m, n] = sum over k of scale_a * a[m, k] * scale_b * b[n, k], in bf16; k is contiguous in both operands.

    `a_dtype` and `b_dtype` store a and b, scales are float32. With scaling "tensor", each operand has one scale; with
    "row", each row of a and of b (a column of the product) has one; with "block", each 128 elements of a row of a have
    one, stored [k / 128][m], and each 128 x 128 elements of b, stored [n / 128][k / 128].
    """

    m: int
    n: int
    k: int
    scaling: str = "tensor"
    a_dtype: str = "e4m3"
    b_dtype: str = "e4m3"

    degree = 4
    outputs = {"out": "m n"}
    choices = {"scaling": ("tensor", "row", "block"), "a_dtype": ("e4m3", "e5m2"), "b_dtype": ("e4m3", "e5m2")}
    library = "torch"

    @property
    def k_blocks(self) -> int:
        """The number of blocks along k; the last one may be smaller."""
        return -(-self.k // BLOCK)

    @property
    def n_blocks(self) -> int:
        """The number of blocks along n; the last one may be smaller."""
        return -(-self.n // BLOCK)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Tensor names to axes, as stored."""
        scales = {"tensor": ("1", "1"), "row": ("m", "n"), "block": ("k_blocks m", "n_blocks k_blocks")}
        scale_a, scale_b = scales[self.scaling]
        return {"a": "m k", "b": "n k", "scale_a": scale_a, "scale_b": scale_b}

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor: scales are float32."""
        return {"a": self.a_dtype, "b": self.b_dtype, "out": "bf16"}.get(name, "f32")

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def reference(self, a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
        """The product of the scaled operands by NumPy."""
        if self.scaling == "block":
            a = a * np.repeat(scale_a.T, BLOCK, axis=1)[:, : self.k]
            b = b * np.repeat(np.repeat(scale_b, BLOCK, axis=0), BLOCK, axis=1)[: self.n, : self.k]
            return matrix_product(a, b.T)
        product = matrix_product(a, b.T)
        return product * scale_a[:, None] * scale_b[None, :]

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs; scales are positive, and powers of two if the other inputs are whole numbers."""
        inputs = super().make_inputs(seed, integers)
        for name in ("scale_a", "scale_b"):
            drawn = inputs[name]
            inputs[name] = np.exp2(drawn % 3 if integers else drawn / 2).astype(np.float32)
        return inputs

    def tolerance(self, precision: str) -> Tolerance:
        """Return the tolerance of a precision class.

        In class "fp8" the sums of tensor cores matter: each of the k additions may lose `TENSOR_CORE_ROUNDOFF` of the
        sum so far. With terms of both signs, a sum has the size of sqrt(k) terms, and errors add up to sqrt(k) times
        that: sqrt(k) of the result, and a constant share of the sum of absolute values. With scaling "block", sums are
        promoted to float32 after 128 elements, as their scales change, so that at most 128 additions are of that kind.
        """
        stored = 2 * UNIT_ROUNDOFF["bf16"]
        accumulate = UNIT_ROUNDOFF["f32"] * sqrt(self.k)
        if precision != "fp8":
            return Tolerance(elementwise=8 * accumulate + stored, norm=4 * accumulate + stored)
        summed = min(self.k, BLOCK) if self.scaling == "block" else self.k
        return Tolerance(
            elementwise=8 * accumulate + 4 * TENSOR_CORE_ROUNDOFF + stored,
            norm=4 * accumulate + TENSOR_CORE_ROUNDOFF * sqrt(summed) + stored,
        )

    @classmethod
    def examples(cls) -> Sequence[ScaledMatmul]:
        """Ones, primes, whole tiles and not, many tiles, aligned rows and not, with each scaling and pair of dtypes."""
        sizes = [(1, 1, 1), (2, 3, 5), (17, 31, 33), (33, 65, 260), (64, 128, 256), (131, 264, 272), (130, 264, 400)]
        sizes.append((1, 776, 400))
        modes = cls.choices
        pairs = [(a, b) for a in modes["a_dtype"] for b in modes["b_dtype"] if (a, b) != ("e4m3", "e4m3")]
        return [
            *(cls(m=m, n=n, k=k, scaling=scaling) for scaling in modes["scaling"] for m, n, k in sizes),
            cls(m=64, n=136, k=1168, scaling="block"),
            *(
                cls(m=m, n=n, k=k, scaling=scaling, a_dtype=a, b_dtype=b)
                for scaling in modes["scaling"]
                for a, b in pairs
                for m, n, k in ((17, 31, 33), (64, 136, 144))
            ),
        ]
