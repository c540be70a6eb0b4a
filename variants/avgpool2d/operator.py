"""avgpool2d: the mean of each window of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Pool2dGeometry


@dataclass(frozen=True, kw_only=True)
class AvgPool2d(Pool2dGeometry):
    """out[n,c,p,q] = sum over r, s < window of x[n, c, p*stride - padding + r, q*stride - padding + s], divided.

    Positions outside the image count as 0. The divisor is the `window`'s size, or how many of its positions lie
    `inside` the image. `layout` orders both arrays, `dtype` stores them.
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

    special_inputs = {"x": ("far", "infinite", "masked", "nan")}
    choices = {"divisor": ("window", "inside"), "layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("x",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"x": "n c h w" if self.layout == "nchw" else "n h w c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n c p q" if self.layout == "nchw" else "n p q c"}

    @property
    def integers_exact(self) -> bool:
        """Whether every divisor is a power of two."""
        return self.window & (self.window - 1) == 0 and (self.divisor == "window" or self.padding == 0)

    def flops(self) -> int:
        """Return the additions of each window and one division per output."""
        return self.n * self.c * self.p * self.q * self.window * self.window

    def reduction(self) -> int:
        """Return the number of positions of a window."""
        return self.window * self.window

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Each output's gradient, divided, goes to all of its window."""
        return [Gradient("avgpool2d_backward", self.axes, {"dout": "d.out"}, {"dx": "d.x"})] if wanted else []

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The sum of one shifted, strided slice of the padded image per position in the window, divided."""
        image = self.pad(self.channels_first(x))
        out = np.zeros(tuple(self.scope[axis] for axis in self.outputs["out"].split()), like=x)
        total = self.channels_first(out)
        for r, s in np.ndindex(self.window, self.window):
            rows, columns = self.pixels_under(r, s)
            total += image[:, :, rows, columns]
        total /= np.outer(self._positions(self.h, self.p, x), self._positions(self.w, self.q, x))
        return out

    def _positions(self, size: int, outputs: int, like: np.ndarray) -> np.ndarray:
        """For each output along one axis, the positions that count."""
        first = np.arange(outputs, like=like) * self.stride - self.padding
        if self.divisor == "window":
            return np.zeros(outputs, like=like) + self.window
        return np.minimum(first + self.window, size) - np.maximum(first, 0)

    @classmethod
    def examples(cls) -> Sequence[AvgPool2d]:
        """The windows of LeNet, AlexNet and UNet and stranger ones, on images of odd, prime and unaligned size."""
        return [
            cls(n=1, c=1, h=2, w=2),
            cls(n=2, c=3, h=16, w=24),
            cls(n=1, c=3, h=17, w=31),
            cls(n=3, c=2, h=30, w=54, window=3),
            cls(n=1, c=5, h=13, w=13, window=3),
            cls(n=2, c=2, h=11, w=16, window=3, stride=1, padding=1),
            cls(n=1, c=2, h=15, w=20, window=3, stride=2, padding=1, divisor="inside"),
            cls(n=1, c=1, h=1, w=1, window=3, stride=1, padding=1),
            cls(n=1, c=7, h=23, w=29, window=5, stride=3, padding=2),
            cls(n=2, c=1, h=12, w=40, window=2, stride=3),
            cls(n=1, c=2, h=6, w=70, window=1, stride=1),
            cls(n=1, c=1, h=9, w=9, window=9, stride=4, padding=4),
            cls(n=33, c=67, h=2, w=3),
            cls(n=2, c=3, h=12, w=32, dtype="bf16"),
            cls(n=1, c=5, h=13, w=22, window=3, dtype="bf16"),
            cls(n=1, c=2, h=9, w=11, window=3, stride=1, padding=1, divisor="inside", dtype="bf16"),
            cls(n=1, c=1, h=2, w=2, layout="nhwc"),
            cls(n=1, c=8, h=33, w=32, layout="nhwc"),
            cls(n=1, c=8, h=27, w=13, window=3, layout="nhwc"),
            cls(n=2, c=7, h=9, w=8, window=3, stride=2, padding=1, layout="nhwc"),
            cls(n=1, c=6, h=11, w=12, window=5, stride=3, padding=2, divisor="inside", layout="nhwc"),
            cls(n=1, c=24, h=10, w=9, layout="nhwc", dtype="bf16"),
            cls(n=2, c=8, h=13, w=13, window=3, layout="nhwc", dtype="bf16"),
            cls(n=1, c=13, h=7, w=9, window=3, stride=1, padding=1, divisor="inside", layout="nhwc", dtype="bf16"),
            cls(n=3, c=4, h=6, w=5, window=2, stride=1, layout="nhwc", dtype="bf16"),
            cls(n=2, c=5, h=7, w=7, window=7, stride=1),
            cls(n=1, c=4, h=40, w=40, window=40, divisor="inside"),
            cls(n=1, c=8, h=40, w=40, window=40, layout="nhwc"),
            cls(n=1, c=9, h=12, w=12, window=12, dtype="bf16"),
            cls(n=2, c=40, h=7, w=7, window=7, stride=1, layout="nhwc"),
            cls(n=1, c=3, h=6, w=6, window=6, layout="nhwc", divisor="inside"),
            cls(n=2, c=72, h=9, w=9, window=9, layout="nhwc", dtype="bf16"),
        ]
