"""linear: out = x @ weight.T + bias, then an activation on request: a layer, or with m = 1 a matrix times a vector."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import ActivatedProduct, Gradient


@dataclass(frozen=True, kw_only=True)
class Linear(ActivatedProduct):
    """out[m, n] = bias[n] + sum over k of x[m, k] * weight[n, k], or 0 where that is below 0 with "bias_relu".

    With "none" there is no bias. "bias_gelu_tanh" applies GELU in PyTorch's tanh approximation to the sum t:
    t (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (t + 0.044715 t^3). "bias_hardsigmoid" gives (t + 3) / 6 between 0 and 1,
    and "bias_hardswish" t times that.
    """

    m: int
    n: int
    k: int
    epilogue: str = "bias"
    dtype: str = "f32"

    outputs = {"out": "m n"}
    choices = {
        "epilogue": ("none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"),
        "dtype": ("f32", "bf16", "f16"),
    }
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the tensors' axes; without an epilogue there is no bias."""
        return {"x": "m k", "weight": "n k", **({} if self.epilogue == "none" else {"bias": "n"})}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Of weight and bias by one linear_wgrad, that of x by linear_dgrad; a ReLU's mask goes first.

        x is then done with before its gradient needs as much memory. None for f16, and for an activation other than
        ReLU, whose gradient needs the sum before it: for training, `elementwise` applies it to a stored sum.
        """
        if self.dtype == "f16" or self.activation not in ("", "relu"):
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

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """Compute the affine map by NumPy, then the activation."""
        total: np.ndarray = x @ weight.T
        if bias is not None:
            total = total + bias
        return self.activated(total)

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
        shapes = [((3, 5, 7), "f32"), ((3, 5, 7), "bf16"), ((66, 72, 132), "f32"), ((1, 131, 264), "bf16")]
        shapes += [((66, 72, 136), "bf16"), ((150, 264, 72), "bf16"), ((66, 128, 40), "f16")]
        pairs += [(size, (mode, dtype)) for mode in ("none", "bias_gelu_tanh") for size, dtype in shapes]
        shapes = [((3, 5, 7), "f32"), ((1, 131, 264), "bf16"), ((66, 72, 136), "bf16"), ((66, 72, 132), "f32")]
        shapes.append(((66, 128, 40), "f16"))
        pairs += [(size, (f"bias_{name}", dtype)) for name in ("hardswish", "hardsigmoid") for size, dtype in shapes]
        return [cls(m=m, n=n, k=k, epilogue=epilogue, dtype=dtype) for (m, n, k), (epilogue, dtype) in pairs]
