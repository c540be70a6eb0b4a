"""matmul: out = a @ b; b is stored by rows or by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, matrix_product


@dataclass(frozen=True, kw_only=True)
class Matmul(Operator):
    """out[m, n] = sum over k of a[m, k] * b[k, n]; with b_order "col" the array b holds b[n, k], k contiguous.

    `dtype` stores all arrays.
    """

    m: int
    n: int
    k: int
    b_order: str = "row"
    dtype: str = "f32"

    degree = 2
    outputs = {"out": "m n"}
    choices = {"b_order": ("row", "col"), "dtype": ("f32", "bf16", "i32", "f64")}
    library = "cublas"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Tensor names to axes, as stored."""
        return {"a": "m k", "b": "k n" if self.b_order == "row" else "n k"}

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product by NumPy, of long doubles by exact slices."""
        return matrix_product(a, b if self.b_order == "row" else b.T)

    @classmethod
    def examples(cls) -> Sequence[Matmul]:
        """Ones, primes, whole tiles and not, in both orders of b and both dtypes; rows 16-byte aligned and not."""
        sizes = [
            (1, 1, 1),
            (2, 3, 5),
            (1, 129, 17),
            (17, 31, 33),
            (33, 65, 127),
            (129, 1, 67),
            (128, 128, 32),
            (131, 260, 20),
        ]
        rows = [cls(m=m, n=n, k=k) for m, n, k in sizes]
        columns = [cls(m=m, n=n, k=k, b_order="col") for m, n, k in sizes if (m, n, k) != (1, 129, 17)]
        halves = [(1, 1, 1), (2, 128, 256), (17, 31, 33), (131, 264, 72)]
        orders = ("row", "col")
        return [*rows, *columns, *(cls(m=m, n=n, k=k, b_order=o, dtype="bf16") for m, n, k in halves for o in orders)]
