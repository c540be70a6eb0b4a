"""grouped_matmul: out = a @ b for rows that are sorted into groups, each with a matrix of its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, matrix_product


@dataclass(frozen=True, kw_only=True)
class GroupedMatmul(Operator):
    """out[m, n] = sum over k of a[m, k] * b[g, n, k], where g is the group of row m; all in bf16.

    ends[g] is the end of the rows of group g, which begin at ends[g - 1]. The ends increase, and the last one is m.
    Groups may be empty. In a mixture of experts, rows are tokens sorted by expert.
    """

    m: int
    n: int
    k: int
    groups: int

    degree = 2
    inputs = {"a": "m k", "b": "groups n k", "ends": "groups"}
    outputs = {"out": "m n"}
    library = "torch"

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor."""
        return "i32" if name == "ends" else "bf16"

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition; each row has one group."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output."""
        return self.k

    def reference(self, a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The products of the groups by NumPy."""
        out = np.zeros((self.m, self.n), a.dtype, like=a)
        start = 0
        for group, end in enumerate(int(end) for end in ends):
            if end > start:
                out[start:end] = matrix_product(a[start:end], b[group].T)
            start = end
        return out

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs; rows choose their groups at random, each group with the same probability."""
        inputs = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/ends".encode())])
        counts = np.bincount(rng.integers(0, self.groups, self.m), minlength=self.groups)
        inputs["ends"] = np.cumsum(counts).astype(np.int32)
        return inputs

    @classmethod
    def examples(cls) -> Sequence[GroupedMatmul]:
        """Ones, primes, one group and several, empty groups, whole tiles and not, rows 16-byte aligned and not."""
        sizes = [
            (1, 1, 1, 1),
            (2, 3, 5, 7),
            (17, 31, 33, 3),
            (33, 65, 72, 5),
            (128, 128, 64, 1),
            (64, 128, 128, 4),
            (300, 136, 72, 2),
            (131, 264, 80, 3),
        ]
        return [cls(m=m, n=n, k=k, groups=groups) for m, n, k, groups in sizes]
