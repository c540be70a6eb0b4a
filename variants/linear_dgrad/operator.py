"""linear_dgrad: the gradient of a fully connected layer with respect to its input."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class LinearDgrad(Operator):
    """dx[m, k] = sum over n of dout[m, n] * weight[n, k]; with "mask" 0 where out <= 0, the ReLU's output that x is."""

    m: int
    n: int
    k: int
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {"epilogue": ("none", "mask"), "dtype": ("f32", "bf16")}
    library = "torch"
    outputs = {"dx": "m k"}
    degree = 2
    linear_in = ("dout", "weight")

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes; the last is what the epilogue reads."""
        return {"dout": "m n", "weight": "n k", **({"out": "m k"} if self.epilogue == "mask" else {})}

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.n

    def reference(self, dout: np.ndarray, weight: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The matrix product by NumPy."""
        dx: np.ndarray = dout @ weight
        if out is not None:
            dx[out <= 0] = 0.0
        return dx

    @classmethod
    def examples(cls) -> Sequence[LinearDgrad]:
        """A single row, ones, primes, whole tiles and not; rows that 16 bytes divide, for f32 only, and not."""
        sizes = [
            (1, 1, 1),
            (1, 131, 264),
            (3, 5, 7),
            (2, 300, 33),
            (8, 10, 400),
            (17, 68, 36),
            (128, 32, 128),
            (131, 67, 65),
        ]
        modes = itertools.cycle([("none", "f32"), ("mask", "bf16"), ("mask", "f32"), ("none", "bf16")])
        pairs = [(size, next(modes)) for size in sizes for _ in range(2)]
        pairs += [((66, 72, 136), ("mask", "f32")), ((66, 72, 136), ("mask", "bf16"))]
        pairs += [
            ((130, 264, 200), ("none", "f32")),
            ((130, 264, 200), ("none", "bf16")),
            ((20, 136, 72), ("none", "bf16")),
        ]
        return [cls(m=m, n=n, k=k, epilogue=epilogue, dtype=dtype) for (m, n, k), (epilogue, dtype) in pairs]
