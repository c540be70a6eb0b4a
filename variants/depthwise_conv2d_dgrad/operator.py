"""depthwise_conv2d_dgrad: the gradient of a depthwise convolution with respect to its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Conv2dGeometry, vector_width


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv2dDgrad(Conv2dGeometry):
    """dimage[n,c,top+i*dilation,left+j*dilation] += weight[c,i,j] * dout[n,c,y,x], over all y, x, i and j.

    top = y * stride - padding, and left = x * stride - padding.
    The axes are those of the convolution (see depthwise_conv2d): h and w of the image, p and q of dout. A pixel that no
    window reaches has the gradient 0. `layout` orders dout, weight and dimage.
    """

    n: int
    c: int
    h: int
    w: int
    r: int
    s: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    layout: str = "nchw"
    dtype: str = "f32"

    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    library = "torch"
    degree = 2
    linear_in = ("dout", "weight")

    @property
    def lanes(self) -> int:
        """Return the channels of the longest vector of up to 16 bytes that divides the channels."""
        return vector_width(self.dtype, self.c)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of dout and weight, outermost first."""
        if self.layout == "nchw":
            return {"dout": "n c p q", "weight": "c r s"}
        return {"dout": "n p q c", "weight": "r s c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the image's gradient, outermost first."""
        return {"dimage": "n c h w" if self.layout == "nchw" else "n h w c"}

    def flops(self) -> int:
        """Return the FLOPs of the convolution: two per filter element and element of dout."""
        return 2 * self.n * self.c * self.p * self.q * self.r * self.s

    def reduction(self) -> int:
        """Return the products that are added up for a pixel, at most."""
        return self.r * self.s

    def reference(self, dout: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """One product with dout per filter position, added to the pixels that the position has seen."""
        weight = weight if self.layout == "nchw" else weight.transpose(2, 0, 1)
        dout = self.channels_first(dout)
        padded = self.pad(np.zeros((self.n, self.c, self.h, self.w), like=dout))
        for i, j in np.ndindex(self.r, self.s):
            rows, columns = self.pixels_under(i, j)
            padded[:, :, rows, columns] += weight[:, i, j, None, None] * dout
        return self.in_layout(self.crop(padded)).copy()

    @classmethod
    def examples(cls) -> Sequence[DepthwiseConv2dDgrad]:
        """Every stride, padding, dilation, filter shape and mode; sizes that no tile or vector divides."""
        nhwc, bf16 = {"layout": "nhwc"}, {"dtype": "bf16"}
        return [
            cls(n=1, c=1, h=1, w=1, r=1, s=1),
            cls(n=2, c=5, h=9, w=17, r=3, s=3, padding=1),
            cls(n=1, c=3, h=12, w=33, r=5, s=3, stride=2, padding=2),
            cls(n=1, c=4, h=14, w=11, r=3, s=3, padding=2, dilation=2),
            cls(n=2, c=6, h=8, w=40, r=2, s=4, stride=3, **bf16),
            cls(n=1, c=7, h=13, w=10, r=7, s=7, padding=3, **bf16),
            cls(n=1, c=4, h=34, w=34, r=3, s=3),
            cls(n=1, c=1, h=4, w=3, r=2, s=1, **nhwc),
            cls(n=1, c=32, h=34, w=34, r=3, s=3, **nhwc),
            cls(n=2, c=36, h=9, w=17, r=3, s=3, padding=1, **nhwc),
            cls(n=1, c=10, h=12, w=13, r=5, s=5, stride=2, padding=2, **nhwc),
            cls(n=1, c=8, h=15, w=11, r=3, s=3, padding=3, dilation=3, **nhwc),
            cls(n=1, c=40, h=10, w=11, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=1, c=12, h=14, w=19, r=3, s=5, stride=2, padding=1, **nhwc, **bf16),
            cls(n=2, c=24, h=9, w=9, r=3, s=3, stride=3, padding=2, dilation=2, **nhwc, **bf16),
        ]
