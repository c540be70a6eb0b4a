"""depthwise_conv2d: each channel of an image convolved with a filter of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import ActivatedProduct, Conv2dGeometry, Gradient, vector_width


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv2d(ActivatedProduct, Conv2dGeometry):
    """out[n,c,y,x] = sum over i,j of image[n,c,top+i*dilation,left+j*dilation] * weight[c,i,j].

    top = y * stride - padding, and left = x * stride - padding. Axes: n images of c channels and h x w pixels, one
    filter of r rows and s columns for each channel. The image counts as zero outside its borders. `layout` orders
    image, weight and output. `epilogue` adds a bias to each channel, then applies ReLU or hardswish, which is
    x (x + 3) / 6 with the quotient between 0 and 1.
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
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {
        "layout": ("nchw", "nhwc"),
        "epilogue": ("none", "bias", "bias_relu", "bias_hardswish"),
        "dtype": ("f32", "bf16"),
    }
    library = "torch"

    @property
    def lanes(self) -> int:
        """Return the channels of the longest vector of up to 16 bytes that divides the channels."""
        return vector_width(self.dtype, self.c)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image, weight and, where there is one, bias, outermost first."""
        bias = {} if self.epilogue == "none" else {"bias": "c"}
        if self.layout == "nchw":
            return {"image": "n c h w", "weight": "c r s", **bias}
        return {"image": "n h w c", "weight": "r s c", **bias}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n c p q" if self.layout == "nchw" else "n p q c"}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """The filters' and the bias's by one depthwise_conv2d_wgrad, then the image's; a ReLU's mask goes first.

        None for hardswish: in training, `elementwise` applies it to a stored sum.
        """
        if self.activation not in ("", "relu"):
            return None
        entries, dout = [], "d.out"
        if self.activation and wanted:
            dout, axes = "out.masked", {"n": self.n * self.c * self.p * self.q, "dtype": self.dtype}
            entries.append(Gradient("relu_backward", axes, {"out": "out", "dout": "d.out"}, {"dx": dout}))
        shape = {name: value for name, value in self.axes.items() if name != "epilogue"}
        given = {f"d{name}": f"d.{name}" for name in ("weight", "bias") if name in wanted}
        if given:
            axes = {**shape, "bias": "yes" if "bias" in wanted else "no"}
            entries.append(Gradient("depthwise_conv2d_wgrad", axes, {"image": "image", "dout": dout}, given))
        if "image" in wanted:
            tied = {"dout": dout, "weight": "weight"}
            entries.append(Gradient("depthwise_conv2d_dgrad", shape, tied, {"dimage": "d.image"}))
        return entries

    def flops(self) -> int:
        """Return two FLOPs per filter element and output element, padding included; the epilogue is not counted."""
        return 2 * self.n * self.c * self.p * self.q * self.r * self.s

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.r * self.s

    def reference(self, image: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """One product with a shifted image per filter position."""
        weight = weight if self.layout == "nchw" else weight.transpose(2, 0, 1)
        out = np.zeros((self.n, self.c, self.p, self.q), like=image)
        padded = self.pad(self.channels_first(image))
        for i, j in np.ndindex(self.r, self.s):
            rows, columns = self.pixels_under(i, j)
            out += weight[:, i, j, None, None] * padded[:, :, rows, columns]
        if bias is not None:
            out += bias[:, None, None]
        return self.in_layout(self.activated(out))

    @classmethod
    def examples(cls) -> Sequence[DepthwiseConv2d]:
        """Every stride, padding, dilation, filter shape and mode; sizes with and without whole tiles and vectors."""
        nhwc, bf16, bias, relu = {"layout": "nhwc"}, {"dtype": "bf16"}, {"epilogue": "bias"}, {"epilogue": "bias_relu"}
        swish = {"epilogue": "bias_hardswish"}
        return [
            cls(n=1, c=1, h=1, w=1, r=1, s=1),
            cls(n=2, c=5, h=9, w=17, r=3, s=3, padding=1, **relu),
            cls(n=1, c=3, h=12, w=33, r=5, s=3, stride=2, padding=2),
            cls(n=1, c=4, h=14, w=11, r=3, s=3, padding=2, dilation=2, **bias),
            cls(n=2, c=6, h=8, w=40, r=2, s=4, stride=3, **bf16, **bias),
            cls(n=1, c=7, h=13, w=10, r=7, s=7, padding=3, **bf16, **relu),
            cls(n=1, c=2, h=10, w=21, r=3, s=3, padding=1, **bf16),
            cls(n=1, c=4, h=34, w=34, r=3, s=3),
            cls(n=1, c=1, h=4, w=3, r=2, s=1, **nhwc),
            cls(n=1, c=32, h=34, w=34, r=3, s=3, **nhwc),
            cls(n=2, c=36, h=9, w=17, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=1, c=10, h=12, w=13, r=5, s=5, stride=2, padding=2, **nhwc, **relu),
            cls(n=1, c=8, h=15, w=11, r=3, s=3, padding=3, dilation=3, **nhwc),
            cls(n=1, c=40, h=14, w=11, r=3, s=3, padding=1, **nhwc, **bf16, **relu),
            cls(n=1, c=12, h=14, w=19, r=3, s=5, stride=2, padding=1, **nhwc, **bf16, **bias),
            cls(n=2, c=24, h=9, w=9, r=3, s=3, padding=2, dilation=2, **nhwc, **bf16),
            cls(n=2, c=3, h=9, w=17, r=3, s=3, padding=1, **swish),
            cls(n=1, c=10, h=12, w=13, r=5, s=5, stride=2, padding=2, **nhwc, **swish),
            cls(n=1, c=40, h=10, w=11, r=3, s=3, padding=1, **nhwc, **bf16, **swish),
        ]
