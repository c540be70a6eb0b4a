"""depthwise_conv2d_wgrad: the gradient of a depthwise convolution with respect to its filters and its bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Arrays, Conv2dGeometry, Operator, Tolerance, vector_width


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv2dWgrad(Conv2dGeometry):
    """dweight[c,i,j] = sum over n,y,x of dout[n,c,y,x] * image[n,c,top+i*dilation,left+j*dilation].

    top = y * stride - padding, and left = x * stride - padding, as in depthwise_conv2d. With bias=yes also dbias[c] =
    sum over n,y,x of dout[n,c,y,x]. dweight is in the order of the convolution's own weight. `dtype` stores image and
    dout; the sums over a whole batch are float32 always.
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
    bias: str = "no"
    dtype: str = "f32"

    choices = {"layout": ("nchw", "nhwc"), "bias": ("no", "yes"), "dtype": ("f32", "bf16")}
    library = "torch"
    linear_in = ("dout",)

    @property
    def degree(self) -> int | None:
        """2, but for the bias, whose gradient is of degree 1."""
        return 2 if self.bias == "no" else None

    @property
    def lanes(self) -> int:
        """Return the channels of a thread: a vector of up to 16 bytes that divides the channels, of 80 sums at most."""
        lanes = vector_width(self.dtype, self.c)
        while lanes > 1 and lanes * self.r * self.s > 80:
            lanes //= 2
        return lanes

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image and dout, outermost first."""
        if self.layout == "nchw":
            return {"image": "n c h w", "dout": "n c p q"}
        return {"image": "n h w c", "dout": "n p q c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the filters' gradient, outermost first, and of the bias's."""
        bias = {"dbias": "c"} if self.bias == "yes" else {}
        return {"dweight": "c r s" if self.layout == "nchw" else "r s c", **bias}

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for sums over a batch, whatever dtype stores the images."""
        return "f32" if name in ("dweight", "dbias") else self.dtype

    def flops(self) -> int:
        """Return the FLOPs of the convolution; the additions for the bias are not counted."""
        return 2 * self.n * self.c * self.p * self.q * self.r * self.s

    def reduction(self) -> int:
        """Return the products per weight, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.n * self.p * self.q, 65536)

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base class's for float32 outputs: products of bf16 are exact, and nothing is rounded to bf16."""
        return Operator.tolerance(replace(self, dtype="f32"), "f32" if self.dtype == "bf16" else precision)

    def reference(self, image: np.ndarray, dout: np.ndarray) -> Arrays:
        """One product of dout with a shifted image per filter position, summed over images and pixels."""
        padded, dout = self.pad(self.channels_first(image)), self.channels_first(dout)
        dweight = np.zeros((self.c, self.r, self.s), like=image)
        for i, j in np.ndindex(self.r, self.s):
            rows, columns = self.pixels_under(i, j)
            dweight[:, i, j] = (dout * padded[:, :, rows, columns]).sum(axis=(0, 2, 3))
        sums = {"dbias": dout.sum(axis=(0, 2, 3))} if self.bias == "yes" else {}
        return {"dweight": dweight if self.layout == "nchw" else dweight.transpose(1, 2, 0).copy(), **sums}

    @classmethod
    def examples(cls) -> Sequence[DepthwiseConv2dWgrad]:
        """Every stride, padding, dilation, filter shape and mode; sizes that no tile or vector divides."""
        nhwc, bf16, bias = {"layout": "nhwc"}, {"dtype": "bf16"}, {"bias": "yes"}
        return [
            cls(n=1, c=1, h=1, w=1, r=1, s=1),
            cls(n=2, c=5, h=9, w=17, r=3, s=3, padding=1, **bias),
            cls(n=1, c=3, h=12, w=33, r=5, s=3, stride=2, padding=2),
            cls(n=1, c=4, h=14, w=11, r=3, s=3, padding=2, dilation=2),
            cls(n=2, c=6, h=8, w=40, r=2, s=4, stride=3, **bf16, **bias),
            cls(n=3, c=7, h=13, w=10, r=5, s=5, padding=2, **bf16),
            cls(n=1, c=4, h=34, w=34, r=3, s=3),
            cls(n=1, c=1, h=4, w=3, r=2, s=1, **nhwc),
            cls(n=1, c=32, h=34, w=34, r=3, s=3, **nhwc),
            cls(n=2, c=36, h=9, w=17, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=3, c=10, h=12, w=13, r=5, s=5, stride=2, padding=2, **nhwc),
            cls(n=1, c=8, h=15, w=11, r=3, s=3, padding=3, dilation=3, **nhwc),
            cls(n=5, c=40, h=10, w=11, r=3, s=3, padding=1, **nhwc, **bf16, **bias),
            cls(n=1, c=12, h=14, w=19, r=3, s=5, stride=2, padding=1, **nhwc, **bf16),
            cls(n=2, c=24, h=9, w=9, r=3, s=3, padding=2, dilation=2, **nhwc, **bf16, **bias),
        ]
