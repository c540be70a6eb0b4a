"""linear_wgrad: the gradient of a fully connected layer with respect to its weights and, optionally, its bias."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Arrays, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class LinearWgrad(Operator):
    """dweight[n, k] = sum over m of dout[m, n] * x[m, k], and with bias=yes dbias[n] = sum over m of dout[m, n].

    `dtype` stores x and dout; what is summed up over a whole batch is float32 always.
    """

    m: int
    n: int
    k: int
    bias: str = "no"
    dtype: str = "f32"

    choices = {"bias": ("no", "yes"), "dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"x": "m k", "dout": "m n"}
    linear_in = ("dout",)

    @property
    def degree(self) -> int | None:
        """2, but for the bias, whose gradient is of degree 1."""
        return 2 if self.bias == "no" else None

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the weights' gradient and of the bias's."""
        return {"dweight": "n k", **({"dbias": "n"} if self.bias == "yes" else {})}

    def tensor_dtype(self, name: str) -> str:
        """Sums over a batch are float32, whatever x is stored in."""
        return "f32" if name in ("dweight", "dbias") else self.dtype

    def flops(self) -> int:
        """Return two FLOPs per product; the additions for the bias are not counted."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the products per weight, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.m, 65536)

    def tolerance(self, precision: str) -> Tolerance:
        """The base class's for float32 outputs: products of bf16 are exact, and nothing is rounded to bf16."""
        return Operator.tolerance(replace(self, dtype="f32"), "f32" if self.dtype == "bf16" else precision)

    def reference(self, x: np.ndarray, dout: np.ndarray) -> Arrays:
        """The matrix product and the column sums by NumPy."""
        found = {"dweight": dout.T @ x}
        return {**found, "dbias": dout.sum(axis=0)} if self.bias == "yes" else found

    @classmethod
    def examples(cls) -> Sequence[LinearWgrad]:
        """A single row, ones, primes, whole tiles and not; rows that 16 bytes divide, for f32 only, and not."""
        sizes = [
            (1, 1, 1),
            (1, 131, 264),
            (3, 5, 7),
            (300, 2, 33),
            (8, 10, 400),
            (68, 17, 36),
            (32, 128, 128),
            (131, 68, 72),
        ]
        modes = itertools.cycle([("no", "f32"), ("yes", "bf16"), ("yes", "f32"), ("no", "bf16")])
        pairs = [(size, next(modes)) for size in sizes for _ in range(2)]
        pairs += [((259, 66, 72), ("yes", "f32")), ((259, 72, 136), ("yes", "bf16"))]
        pairs += [((130, 140, 200), ("no", "f32")), ((130, 136, 200), ("no", "bf16"))]
        return [cls(m=m, n=n, k=k, bias=bias, dtype=dtype) for (m, n, k), (bias, dtype) in pairs]
