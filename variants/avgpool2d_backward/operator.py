"""avgpool2d_backward: the gradient of avgpool2d: each pixel sums its share of the output gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class AvgPool2dBackward(Operator):
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
    def p(self) -> int:
        """Height of the pooled image."""
        return (self.h + 2 * self.padding - self.window) // self.stride + 1

    @property
    def q(self) -> int:
        """Width of the pooled image."""
        return (self.w + 2 * self.padding - self.window) // self.stride + 1

    @property
    def packs(self) -> int:
        """Vectors of up to 16 bytes that a pixel's channels divide into."""
        return self.c // vector_width(self.dtype, self.c)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the pooled image, outermost first."""
        return {"dout": "n c p q" if self.layout == "nchw" else "n p q c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"dx": "n c h w" if self.layout == "nchw" else "n h w c"}

    def validate(self) -> None:
        """Refuse windows that may hold no element of the image."""
        if self.window < 1 or self.stride < 1:
            raise UsageError(f"{self}: window and stride must be >= 1")
        if self.padding > self.window // 2:
            raise UsageError(
                f"{self}: padding={self.padding} is not allowed; at most window // 2 = "
                f"{self.window // 2}, so that every window holds an element of the image"
            )
        if min(self.h, self.w) + 2 * self.padding < self.window:
            raise UsageError(
                f"{self}: the window is larger than the padded image of "
                f"{self.h + 2 * self.padding}x{self.w + 2 * self.padding}"
            )

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
        share = dout if self.layout == "nchw" else dout.transpose(0, 3, 1, 2)
        share = share / np.outer(self._positions(self.h, self.p, dout), self._positions(self.w, self.q, dout))
        height, width = self.h + 2 * self.padding, self.w + 2 * self.padding
        padded = np.zeros((self.n, self.c, height, width), like=dout)
        rows, columns = (self.p - 1) * self.stride + 1, (self.q - 1) * self.stride + 1
        for r in range(self.window):
            for s in range(self.window):
                padded[:, :, r : r + rows : self.stride, s : s + columns : self.stride] += share
        dx = padded[:, :, self.padding : self.padding + self.h, self.padding : self.padding + self.w]
        return dx if self.layout == "nchw" else dx.transpose(0, 2, 3, 1)

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
