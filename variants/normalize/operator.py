"""normalize: a tensor divided by its norm along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Operator, vector_width

NORMS = {
    "l1": lambda x, epsilon: abs(x).sum(axis=1),
    "l2": lambda x, epsilon: (x * x).sum(axis=1) ** 0.5,
    "mean_abs": lambda x, epsilon: abs(x).mean(axis=1),
    "rms": lambda x, epsilon: ((x * x).mean(axis=1) + epsilon) ** 0.5,
}


@dataclass(frozen=True, kw_only=True)
class Normalize(Operator):
    """out[o,a,i] = x[o,a,i] / norm of x[o,:,i]; `dtype` stores x and out, arithmetic is float32.

    The axis may be the last one (inner = 1), the channels of images, or, with outer = inner = 1, the whole tensor
    (Frobenius norm). l1 is the sum of absolute values and mean_abs their mean, l2 the root of the sum of squares, and
    rms the root of their mean plus 1e-5. A norm of 0 has no defined result, except for rms.
    """

    outer: int
    axis: int
    inner: int = 1
    norm: str = "l2"
    dtype: str = "f32"

    epsilon: ClassVar[float] = 1e-5
    choices = {"norm": tuple(NORMS), "dtype": ("f32", "bf16")}
    special_inputs = {"x": ("level", "far", "nan")}
    integers_exact = False  # quotients are not whole
    inputs = {"x": "outer axis inner"}
    outputs = {"out": "outer axis inner"}
    library = "torch"

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row (inner = 1) or `inner`."""
        return vector_width(self.dtype, self.axis if self.inner == 1 else self.inner)

    def flops(self) -> int:
        """Return three FLOPs per element: a size or square, its sum, and a product."""
        return 3 * self.outer * self.axis * self.inner

    def reduction(self) -> int:
        """Return the number of elements along the axis."""
        return self.axis

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Divide by the norm, computed by NumPy."""
        quotient: np.ndarray = x / NORMS[self.norm](x, self.epsilon)[:, None]
        return quotient

    @classmethod
    def examples(cls) -> Sequence[Normalize]:
        """Rows and columns shorter and longer than a warp and a block, divided by vectors and not, in every norm."""
        shapes = [
            (5, 3, 1),
            (13, 64, 1),
            (4, 257, 1),
            (2, 1024, 1),
            (1, 4099, 1),
            (1, 16384, 1),
            (2, 5, 3),
            (3, 64, 64),
            (2, 37, 132),
            (1, 100, 31),
        ]
        return [
            cls(outer=outer, axis=axis, inner=inner, norm=norm, dtype=dtype)
            for i, (outer, axis, inner) in enumerate(shapes)
            for j, norm in enumerate(NORMS)
            for dtype in cls.choices["dtype"]
            if (i + j) % 2 == 0 or axis == 64
        ]
