"""avgpool2d_backward: the gradient of avgpool2d: each pixel sums its share of the output gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Pool2dGeometry


@dataclass(frozen=True, kw_only=True)
class AvgPool2dBackward(Pool2dGeometry):
    """dx[n,c,y,z] = sum of dout[n,c,p,q] / divisor[p,q] over the windows p, q that cover the pixel y, z.

    The divisor is the `window`'s size, or how many of its positions lie `inside` the image. `layout` orders both
    arrays, `dtype` stores them.
    """

    n: int
    c: int
    h: int
    w: int
    window: int = 2
    stride: int = 2
    padding: int = 0
    divisor: str = "window"
    layout: str = "nchw"
    dtype: str = "f32"

    choices = {"divisor": ("window", "inside"), "layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    library = "torch"
    degree = 1
    linear_in = ("dout",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the pooled image, outermost first."""
        return {"dout": "n c p q" if self.layout == "nchw" else "n p q c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"dx": "n c h w" if self.layout == "nchw" else "n h w c"}

    @property
    def integers_exact(self) -> bool:
        """Whether every divisor is a power of two."""
        return self.window & (self.window - 1) == 0 and (self.divisor == "window" or self.padding == 0)

    def flops(self) -> int:
        """Return one addition per position of a window."""
        return self.n * self.c * self.p * self.q * self.window * self.window

    def reduction(self) -> int:
        """Return the number of windows that may share a pixel."""
        return (-(-self.window // self.stride)) ** 2

    def reference(self, dout: np.ndarray) -> np.ndarray:
        """Divide, then add to one shifted, strided slice of the padded image per position in the window."""
        divisors = np.outer(self._positions(self.h, self.p, dout), self._positions(self.w, self.q, dout))
        share = self.channels_first(dout) / divisors
        padded = self.pad(np.zeros((self.n, self.c, self.h, self.w), like=dout))
        for r, s in np.ndindex(self.window, self.window):
            rows, columns = self.pixels_under(r, s)
            padded[:, :, rows, columns] += share
        return self.in_layout(self.crop(padded))

    def _positions(self, size: int, outputs: int, like: np.ndarray) -> np.ndarray:
        """For each window along one axis, the positions that count."""
        first = np.arange(outputs, like=like) * self.stride - self.padding
        if self.divisor == "window":
            return np.zeros(outputs, like=like) + self.window
        return np.minimum(first + self.window, size) - np.maximum(first, 0)

    @classmethod
    def examples(cls) -> Sequence[AvgPool2dBackward]:
        """Windows that overlap, touch and leave gaps, images of odd, prime and unaligned size, every mode."""
        shapes = [
            {"n": 1, "c": 1, "h": 2, "w": 2},
            {"n": 2, "c": 8, "h": 8, "w": 24},
            {"n": 1, "c": 3, "h": 33, "w": 35},
            {"n": 2, "c": 4, "h": 13, "w": 18, "window": 3},
            {"n": 1, "c": 16, "h": 7, "w": 12, "window": 3, "stride": 1, "padding": 1},
            {"n": 1, "c": 5, "h": 9, "w": 16, "window": 3, "stride": 2, "padding": 1},
            {"n": 1, "c": 2, "h": 23, "w": 19, "window": 5, "stride": 3, "padding": 2},
            {"n": 2, "c": 8, "h": 12, "w": 10, "window": 2, "stride": 3},
            {"n": 1, "c": 2, "h": 6, "w": 40, "window": 1, "stride": 1},
            {"n": 1, "c": 3, "h": 9, "w": 9, "window": 9, "stride": 4, "padding": 4},
            {"n": 9, "c": 37, "h": 2, "w": 3},
        ]
        modes = [
            (layout, dtype, divisor)
            for layout in ("nchw", "nhwc")
            for dtype in ("f32", "bf16")
            for divisor in ("window", "inside")
        ]
        return [
            cls(**shape, layout=layout, dtype=dtype, divisor=divisor)
            for i, (layout, dtype, divisor) in enumerate(modes)
            for j, shape in enumerate(shapes)
            if (divisor == "window" and 1 <= j <= 4) or 4 <= j <= 6 or (i + j) % 3 == 0
        ]
