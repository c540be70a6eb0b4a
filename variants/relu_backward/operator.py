"""relu_backward: the gradient of ReLU: the output gradient where the input was positive, else zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class ReluBackward(Operator):
    """dx[i] = dout[i] where out[i] > 0, else 0; `out` is what the ReLU gave, `dtype` stores all three."""

    n: int
    dtype: str = "f32"

    special_inputs = {"out": ("tiny",), "dout": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"out": "n", "dout": "n"}
    outputs = {"dx": "n"}
    degree = 1  # the mask does not change with the size of what it is made of
    linear_in = ("dout",)

    @property
    def lanes(self) -> int:
        """Return the elements in 16 bytes; the last elements are processed one by one."""
        return vector_width(self.dtype)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but `out` is what a ReLU gives: half of it is 0, which lets nothing pass."""
        arrays = super().make_inputs(seed, integers)
        arrays["out"] = to_storage(np.maximum(from_storage(arrays["out"], self.dtype), np.float32(0.0)), self.dtype)
        return arrays

    def reference(self, out: np.ndarray, dout: np.ndarray) -> np.ndarray:
        """The gradient where the output is above 0."""
        return np.where(out > 0.0, dout, 0.0)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are copied or 0."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[ReluBackward]:
        """Lengths of each remainder by 8, of one block and of several, in both dtypes."""
        lengths = (1, 2, 3, 31, 127, 1021, 1030, 4096, 4100, 20013, 65537)
        return [cls(n=n, dtype=dtype) for dtype in ("f32", "bf16") for n in lengths]
