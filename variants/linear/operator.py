"""linear: out = x @ weight.T + bias, optionally with ReLU: a dense layer, or with m = 1 a matrix times a vector."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Operator


@dataclass(frozen=True, kw_only=True)
class Linear(Operator):
    """out[m, n] = bias[n] + sum over k of x[m, k] * weight[n, k], or 0 where that is below 0 with "bias_relu".

    The bias makes it inhomogeneous, so it has no `degree`. Each element's allowance is the base class's: absolute
    values make every term positive, so the magnitude is that of the sum before ReLU.
    """

    m: int
    n: int
    k: int
    epilogue: str = "bias"
    dtype: str = "f32"

    inputs = {"x": "m k", "weight": "n k", "bias": "n"}
    outputs = {"out": "m n"}
    choices = {"epilogue": ("bias", "bias_relu"), "dtype": ("f32", "bf16", "f16")}
    library = "torch"

    @property
    def linear_in(self) -> Sequence[str]:
        """Each input alone, the bias too, unless a ReLU follows."""
        return () if self.epilogue == "bias_relu" else ("x", "weight", "bias")

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Of weight and bias by one linear_wgrad, that of x by linear_dgrad; a ReLU's mask goes first. None for f16.

        x is then done with before its gradient needs as much memory.
        """
        if self.dtype == "f16":
            return None
        entries, dout = [], "d.out"
        if self.epilogue == "bias_relu" and wanted:
            dout, axes = "out.masked", {"n": self.m * self.n, "dtype": self.dtype}
            entries.append(Gradient("relu_backward", axes, {"out": "out", "dout": "d.out"}, {"dx": dout}))
        shape = {"m": self.m, "n": self.n, "k": self.k, "dtype": self.dtype}
        found = {f"d{name}": f"d.{name}" for name in ("weight", "bias") if name in wanted}
        if found:
            axes = {**shape, "bias": "yes" if "bias" in wanted else "no"}
            entries.append(Gradient("linear_wgrad", axes, {"x": "x", "dout": dout}, found))
        if "x" in wanted:
            entries.append(Gradient("linear_dgrad", shape, {"dout": dout, "weight": "weight"}, {"dx": "d.x"}))
        return entries

    def flops(self) -> int:
        """Return two FLOPs per product; the bias adds none, because the sum starts with it."""
        return 2 * self.m * self.n * self.k

    def reduction(self) -> int:
        """Return the number of products per output, plus one for the bias."""
        return self.k + 1

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """The affine map by NumPy."""
        total: np.ndarray = x @ weight.T + bias
        return np.maximum(total, 0.0) if self.epilogue == "bias_relu" else total

    @classmethod
    def examples(cls) -> Sequence[Linear]:
        """A single row, ones, primes, whole tiles and not; rows of k that 16 bytes divide, for f32 only, and not."""
        sizes = [
            (1, 1, 1),
            (1, 131, 264),
            (3, 5, 7),
            (2, 33, 1028),
            (8, 32, 400),
            (17, 67, 36),
            (128, 128, 32),
            (131, 65, 67),
        ]
        modes = itertools.cycle([("bias", "f32"), ("bias_relu", "bf16"), ("bias_relu", "f32"), ("bias", "bf16")])
        pairs = [(size, next(modes)) for size in sizes for _ in range(2)]
        pairs += [((150, 264, 328), ("bias_relu", "bf16")), ((150, 264, 40), ("bias", "bf16"))]
        pairs += [((21, 72, 136), ("bias", "bf16"))]
        pairs += [((150, 264, 68), ("bias_relu", "f32")), ((130, 72, 260), ("bias", "f32"))]
        pairs += [((3, 5, 7), ("bias_relu", "f16")), ((1, 131, 264), ("bias", "f16")), ((66, 128, 40), ("bias", "f16"))]
        return [cls(m=m, n=n, k=k, epilogue=epilogue, dtype=dtype) for (m, n, k), (epilogue, dtype) in pairs]
