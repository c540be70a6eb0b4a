"""upsample2d: enlarge images by a whole factor, with the nearest pixel or bilinearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Tolerance, Upsample2dGeometry, vector_width


@dataclass(frozen=True, kw_only=True)
class Upsample2d(Upsample2dGeometry):
    """Output pixel y lies at (y + 1/2) / scale - 1/2 of the input, and so in both directions.

    "nearest" takes the pixel y // scale; "bilinear" weighs the two neighbours by their distance, where a position left
    of the first or right of the last pixel is that pixel (PyTorch's align_corners=False). `layout` orders both arrays,
    `dtype` stores them.
    """

    n: int
    c: int
    h: int
    w: int
    scale: int = 2
    mode: str = "nearest"
    layout: str = "nchw"
    dtype: str = "f32"

    choices = {"mode": ("nearest", "bilinear"), "layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("x",)

    @property
    def columns(self) -> int:
        """Pixels of a row under a vector of up to 16 bytes of outputs."""
        lanes = vector_width(self.dtype)
        under = lanes // self.scale
        return under if lanes % self.scale == 0 and self.w % under == 0 else 1

    @property
    def integers_exact(self) -> bool:
        """Weights of a power of two are exact."""
        return self.mode == "nearest" or self.scale & (self.scale - 1) == 0

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"x": "n c h w" if self.layout == "nchw" else "n h w c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n c p q" if self.layout == "nchw" else "n p q c"}

    def flops(self) -> int:
        """Return 0 for the nearest pixel, else seven FLOPs per output: four products and three sums."""
        return 0 if self.mode == "nearest" else 7 * self.n * self.c * self.p * self.q

    def reduction(self) -> int:
        """Return the number of pixels that an output is a weighted sum of."""
        return 1 if self.mode == "nearest" else 4

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Each pixel gathers the gradients of those made of it."""
        return [Gradient("upsample2d_backward", self.axes, {"dout": "d.out"}, {"dx": "d.x"})] if wanted else []

    def reference(self, x: np.ndarray) -> np.ndarray:
        """One direction after the other: gather the neighbours, weigh them."""
        rows, columns = (2, 3) if self.layout == "nchw" else (1, 2)
        for axis in (rows, columns):
            if self.mode == "nearest":
                x = np.repeat(x, self.scale, axis)
            else:
                x = self._interpolated(x, axis)
        return x

    def _interpolated(self, x: np.ndarray, axis: int) -> np.ndarray:
        size = x.shape[axis]
        position = np.maximum((np.arange(size * self.scale, like=x) + 0.5) / self.scale - 0.5, 0.0)
        low = position.astype(np.int64)
        weight = (position - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        left, right = x.take(low, axis), x.take(np.minimum(low + 1, size - 1), axis)
        left *= 1 - weight
        right *= weight
        left += right
        return left

    def tolerance(self, precision: str) -> Tolerance:
        """Exact for the nearest pixel, which is copied."""
        return Tolerance(0.0, 0.0) if self.mode == "nearest" else super().tolerance(precision)

    @classmethod
    def examples(cls) -> Sequence[Upsample2d]:
        """Both modes, layouts and dtypes on images of odd, prime and unaligned size, down to one pixel."""
        shapes = [
            {"n": 1, "c": 1, "h": 1, "w": 1},
            {"n": 2, "c": 3, "h": 16, "w": 20},
            {"n": 1, "c": 2, "h": 7, "w": 13},
            {"n": 1, "c": 5, "h": 5, "w": 6, "scale": 3},
            {"n": 1, "c": 8, "h": 9, "w": 4, "scale": 4},
            {"n": 3, "c": 16, "h": 5, "w": 7},
        ]
        modes = [
            (m, layout, d) for m in ("nearest", "bilinear") for layout in ("nchw", "nhwc") for d in ("f32", "bf16")
        ]
        pairs = [(s, m) for i, m in enumerate(modes) for j, s in enumerate(shapes) if j < 2 or (i + j) % 2]
        return [cls(**shape, mode=m, layout=layout, dtype=d) for shape, (m, layout, d) in pairs]
