"""conv2d_wgrad: the gradient of a convolution with respect to its filters and, optionally, its bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Arrays, Conv2dGeometry, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Conv2dWgrad(Conv2dGeometry):
    """dweight[k,c,i,j] = sum over n,y,x of dout[n,k,y,x] * image[n,c,y*stride+i-padding,x*stride+j-padding].

    With bias=yes also dbias[k] = sum over n,y,x of dout[n,k,y,x]. The axes are those of the convolution (see conv2d);
    dweight lies as the convolution's own weight does. `dtype` stores image and dout; what is summed up over a whole
    batch is float32 always.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    padding: int = 0
    layout: str = "nchw"
    bias: str = "no"
    dtype: str = "f32"

    choices = {"layout": ("nchw", "nhwc"), "bias": ("no", "yes"), "dtype": ("f32", "bf16")}
    library = "torch"
    linear_in = ("dout",)
    flops_are_a_floor = False  # Winograd and FFT get by with fewer

    @property
    def degree(self) -> int | None:
        """2, but for the bias, whose gradient is of degree 1."""
        return 2 if self.bias == "no" else None

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image and dout, outermost first."""
        if self.layout == "nchw":
            return {"image": "n c h w", "dout": "n k p q"}
        return {"image": "n h w c", "dout": "n p q k"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the filters' gradient, outermost first, and of the bias's."""
        bias = {"dbias": "k"} if self.bias == "yes" else {}
        return {"dweight": "k c r s" if self.layout == "nchw" else "k r s c", **bias}

    def tensor_dtype(self, name: str) -> str:
        """Sums over a batch are float32, whatever images are stored in."""
        return "f32" if name in ("dweight", "dbias") else self.dtype

    def flops(self) -> int:
        """Return the FLOPs of the convolution; the additions for the bias are not counted."""
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s

    def reduction(self) -> int:
        """Return the products per weight, at most 65536: longer sums are in blocks, whose error does not grow.

        The root of a million would allow 2.4e-4 of the norm, and let a result pass that lacks whole rows.
        """
        return min(self.n * self.p * self.q, 65536)

    def tolerance(self, precision: str) -> Tolerance:
        """The base class's for float32 outputs: products of bf16 are exact, and nothing is rounded to bf16."""
        return Operator.tolerance(replace(self, dtype="f32"), "f32" if self.dtype == "bf16" else precision)

    def reference(self, image: np.ndarray, dout: np.ndarray) -> Arrays:
        """One matrix product per image and filter position."""
        image, dout = self.channels_first(image), self.channels_first(dout)
        dweight = np.zeros((self.k, self.c, self.r, self.s), like=image)
        for index in range(self.n):
            padded, gradient = self.pad(image[index]), dout[index].reshape(self.k, -1)
            for i, j in np.ndindex(self.r, self.s):
                rows, columns = self.pixels_under(i, j)
                dweight[:, :, i, j] += gradient @ padded[:, rows, columns].reshape(self.c, -1).T
        gradients = {"dweight": self.in_layout(dweight)}
        return {**gradients, "dbias": dout.sum(axis=(0, 2, 3))} if self.bias == "yes" else gradients

    @classmethod
    def examples(cls) -> Sequence[Conv2dWgrad]:
        """Every stride, padding, filter shape and mode; pixels that no window reaches; sizes that no tile divides."""
        bias, nhwc, bf16 = {"bias": "yes"}, {"layout": "nhwc"}, {"dtype": "bf16"}
        return [
            cls(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
            cls(n=3, c=37, h=7, w=5, k=41, r=1, s=1),
            cls(n=2, c=11, h=13, w=17, k=13, r=3, s=3, padding=1),
            cls(n=1, c=5, h=14, w=15, k=9, r=3, s=5, stride=3, padding=2, **bias),
            cls(n=2, c=3, h=12, w=17, k=7, r=3, s=2, stride=2),
            cls(n=1, c=12, h=9, w=11, k=68, r=3, s=3, padding=1, **bias),
            cls(n=1, c=4, h=9, w=7, k=6, r=1, s=2, stride=3, padding=1),
            cls(n=1, c=3, h=27, w=19, k=4, r=11, s=11, stride=4, padding=2),
            cls(n=2, c=1, h=33, w=32, k=8, r=5, s=5, padding=2, **bias),
            cls(n=1, c=12, h=11, w=14, k=17, r=3, s=3, padding=1, **bf16),
            cls(n=2, c=3, h=13, w=10, k=5, r=5, s=3, stride=2, padding=1, **bias, **bf16),
            cls(n=1, c=1, h=1, w=1, k=3, r=1, s=1, **nhwc, **bias),
            cls(n=2, c=41, h=7, w=5, k=37, r=1, s=1, **nhwc),
            cls(n=1, c=13, h=13, w=11, k=11, r=3, s=3, padding=1, **nhwc),
            cls(n=1, c=24, h=9, w=10, k=68, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=2, c=12, h=6, w=7, k=36, r=2, s=3, padding=1, **nhwc),
            cls(n=2, c=8, h=14, w=15, k=12, r=3, s=5, stride=3, padding=2, **nhwc),
            cls(n=1, c=7, h=12, w=8, k=5, r=3, s=3, stride=2, padding=1, **nhwc, **bias),
            cls(n=1, c=4, h=9, w=6, k=8, r=1, s=1, stride=2, padding=1, **nhwc),
            cls(n=1, c=3, h=33, w=32, k=16, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=2, c=16, h=12, w=13, k=72, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=1, c=24, h=7, w=6, k=65, r=3, s=2, stride=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c=13, h=5, w=9, k=16, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=2, c=8, h=31, w=29, k=8, r=3, s=3, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c=1, h=17, w=14, k=10, r=5, s=5, padding=2, **nhwc, **bf16),
            cls(n=3, c=2, h=15, w=12, k=68, r=3, s=3, stride=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=13, c=16, h=5, w=7, k=16, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=2, c=1, h=51, w=43, k=72, r=11, s=11, stride=4, padding=1, **nhwc, **bias),
            cls(n=2, c=1, h=51, w=43, k=72, r=11, s=11, stride=4, padding=1, **nhwc, **bf16),
            cls(n=1, c=3, h=17, w=19, k=40, r=5, s=5, stride=2, padding=2, **nhwc, **bias, **bf16),
            cls(n=11, c=8, h=7, w=5, k=12, r=2, s=2, **nhwc),
            cls(n=2, c=12, h=33, w=32, k=1, r=1, s=1, **nhwc, **bias),
            cls(n=1, c=16, h=11, w=13, k=3, r=1, s=1, **nhwc, **bf16),
            cls(n=2, c=24, h=17, w=19, k=40, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=2, c=72, h=18, w=11, k=24, r=3, s=3, **nhwc),
            cls(n=1, c=104, h=9, w=8, k=136, r=2, s=3, stride=2, padding=1, **nhwc),
            cls(n=1, c=104, h=9, w=8, k=136, r=2, s=3, stride=2, padding=1, **nhwc, **bias, **bf16),
        ]
