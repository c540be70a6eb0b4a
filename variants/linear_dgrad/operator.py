"""linear_dgrad: the gradient of a fully connected layer with respect to its input."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator


@dataclass(frozen=True, kw_only=True)
class LinearDgrad(Operator):
    """dx[m, k] = sum over n of dout[m, n] * weight[n, k], then the gradient of the activation whose output x is.

    With "mask" dx is 0 where out <= 0, out being a ReLU's output; with "gelu_tanh" it is multiplied by the slope of
    GELU by tanh at its input a.
    """

    m: int
    n: int
    k: int
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {"epilogue": ("none", "mask", "gelu_tanh"), "dtype": ("f32", "bf16")}
    library = "torch"
    outputs = {"dx": "m k"}
    linear_in = ("dout", "weight")

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes; the last is what the epilogue reads."""
        other = {"mask": {"out": "m k"}, "gelu_tanh": {"a": "m k"}}.get(self.epilogue, {})
        return {"dout": "m n", "weight": "n k", **other}

    @property
    def degree(self) -> int | None:
        """2, but with GELU, whose slope is not linear."""
        return None if self.epilogue == "gelu_tanh" else 2

    @property
    def integers_exact(self) -> bool:
        """Slopes of GELU are not whole."""
        return self.epilogue != "gelu_tanh"

    def flops(self) -> int:
        """Return two FLOPs per product, a multiplication and an addition."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.n

    def reference(
        self, dout: np.ndarray, weight: np.ndarray, out: np.ndarray | None = None, a: np.ndarray | None = None
    ) -> np.ndarray:
        """The matrix product by NumPy, then the mask or the slope."""
        dx: np.ndarray = dout @ weight
        if out is not None:
            dx[out <= 0] = 0.0
        return dx if a is None else dx * _gelu_slope(a)

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
            ((1, 72, 1032), ("none", "bf16")),
            ((1, 72, 1032), ("mask", "bf16")),
        ]
        gelu = [((3, 5, 7), "bf16"), ((17, 68, 36), "f32"), ((131, 67, 65), "f32"), ((66, 72, 136), "bf16")]
        gelu += [((130, 264, 200), "bf16"), ((128, 64, 256), "bf16"), ((40, 36, 64), "f32")]
        pairs += [(size, ("gelu_tanh", dtype)) for size, dtype in gelu]
        return [cls(m=m, n=n, k=k, epilogue=epilogue, dtype=dtype) for (m, n, k), (epilogue, dtype) in pairs]


def _gelu_slope(a: np.ndarray) -> np.ndarray:
    """Return the slope of GELU by tanh, which is x times a sigmoid of 2 u, u being the argument of tanh."""
    twice = np.sqrt(8 / np.pi) * (a + 0.044715 * a**3)
    steepness = np.sqrt(8 / np.pi) * (1 + 3 * 0.044715 * a**2)
    decay = np.exp(-np.abs(twice))
    share, rest = np.where(twice >= 0, 1.0, decay) / (1 + decay), np.where(twice >= 0, decay, 1.0) / (1 + decay)
    slope: np.ndarray = share + a * steepness * share * rest
    return slope
