"""triangular_matmul: out = a @ b for two square matrices that are both upper or both lower triangular."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, matrix_product


@dataclass(frozen=True, kw_only=True)
class TriangularMatmul(Operator):
    """out[i, j] = sum over k of a[i, k] * b[k, j]; a, b and thus out are zero below the diagonal, or above it.

    With triangle "upper", elements with i > j are zero; with "lower", those with i < j. All elements are stored, and
    the zeros of out are written. `dtype` stores all arrays.
    """

    n: int
    triangle: str = "upper"
    dtype: str = "f32"

    degree = 2
    inputs = {"a": "n n", "b": "n n"}
    outputs = {"out": "n n"}
    choices = {"triangle": ("upper", "lower"), "dtype": ("f32", "bf16")}
    library = "torch"

    def flops(self) -> int:
        """Return two FLOPs per product of elements that may differ from zero: a third of n^3 for large n."""
        return self.n * (self.n + 1) * (self.n + 2) // 3

    def bytes(self) -> int:
        """Return the bytes of the triangles of a and b, and of all of out, zeros included."""
        size = self.output_tensors()[0].nbytes // self.n**2
        return size * (self.n * (self.n + 1) + self.n**2)

    def reduction(self) -> int:
        """Return the number of products of the output with the most."""
        return self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded numbers within the triangle, and zeros elsewhere."""
        cut = np.triu if self.triangle == "upper" else np.tril
        return {name: cut(array) for name, array in super().make_inputs(seed, integers).items()}

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product by NumPy, zeros included."""
        return matrix_product(a, b)

    @classmethod
    def examples(cls) -> Sequence[TriangularMatmul]:
        """One, primes, one tile, several whole tiles, and rows that are not 16-byte aligned, in all modes."""
        return [
            cls(n=n, triangle=triangle, dtype=dtype)
            for dtype, sizes in (("f32", (1, 2, 17, 64, 67, 130, 192)), ("bf16", (1, 17, 64, 130, 192)))
            for n in sizes
            for triangle in cls.choices["triangle"]
        ]
