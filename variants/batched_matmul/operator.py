"""batched_matmul: out = a @ b for each matrix of a batch; a and b are stored by rows or by columns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Operator, matrix_product


@dataclass(frozen=True, kw_only=True)
class BatchedMatmul(Operator):
    """out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n] for each i of the batch.

    With a_order "col" the array a holds a[i, k, m], m contiguous; with b_order "col" the array b holds b[i, n, k], k
    contiguous. `dtype` stores all arrays.
    """

    batch: int
    m: int
    n: int
    k: int
    a_order: str = "row"
    b_order: str = "row"
    dtype: str = "f32"

    degree = 2
    outputs = {"out": "batch m n"}
    linear_in = ("a", "b")
    choices = {"a_order": ("row", "col"), "b_order": ("row", "col"), "dtype": ("f32", "bf16")}
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Tensor names to axes, as stored."""
        return {
            "a": "batch m k" if self.a_order == "row" else "batch k m",
            "b": "batch k n" if self.b_order == "row" else "batch n k",
        }

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.batch * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Return products of d.out with the other operand, in the order in which the gradient is stored."""
        other = {"row": "col", "col": "row"}
        sizes = {"batch": self.batch, "dtype": self.dtype}
        found = []
        if "a" in wanted and self.a_order == "row":
            axes = {**sizes, "m": self.m, "n": self.k, "k": self.n, "a_order": "row", "b_order": other[self.b_order]}
            found.append(Gradient(self.name, axes, {"a": "d.out", "b": "b"}, {"out": "d.a"}))
        elif "a" in wanted:
            axes = {**sizes, "m": self.k, "n": self.m, "k": self.n, "a_order": self.b_order, "b_order": "col"}
            found.append(Gradient(self.name, axes, {"a": "b", "b": "d.out"}, {"out": "d.a"}))
        if "b" in wanted and self.b_order == "row":
            axes = {**sizes, "m": self.k, "n": self.n, "k": self.m, "a_order": other[self.a_order], "b_order": "row"}
            found.append(Gradient(self.name, axes, {"a": "a", "b": "d.out"}, {"out": "d.b"}))
        elif "b" in wanted:
            axes = {**sizes, "m": self.n, "n": self.k, "k": self.m, "a_order": "col", "b_order": self.a_order}
            found.append(Gradient(self.name, axes, {"a": "d.out", "b": "a"}, {"out": "d.b"}))
        return found

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The products by NumPy."""
        rows = a if self.a_order == "row" else a.transpose(0, 2, 1)
        return matrix_product(rows, b if self.b_order == "row" else b.transpose(0, 2, 1))

    @classmethod
    def examples(cls) -> Sequence[BatchedMatmul]:
        """Ones, primes, whole tiles and not, one matrix and several, in all orders and both dtypes."""
        sizes = [
            (1, 1, 1, 1),
            (3, 2, 3, 5),
            (2, 17, 31, 33),
            (5, 33, 65, 12),
            (2, 132, 136, 72),
            (1, 128, 128, 32),
        ]
        halves = [(1, 1, 1, 1), (3, 8, 128, 64), (2, 17, 31, 33), (2, 136, 264, 72)]
        orders = list(itertools.product(("row", "col"), repeat=2))
        return [
            cls(batch=batch, m=m, n=n, k=k, a_order=a, b_order=b, dtype=dtype)
            for dtype, problems in (("f32", sizes), ("bf16", halves))
            for batch, m, n, k in problems
            for a, b in orders
        ]
