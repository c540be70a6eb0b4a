"""conv2d: two-dimensional convolution (cross-correlation) of images with filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import ActivatedProduct, Conv2dGeometry, Gradient, passed_on


@dataclass(frozen=True, kw_only=True)
class Conv2d(ActivatedProduct, Conv2dGeometry):
    """out[n,k,y,x] = sum over c,i,j of image[n,c,y*stride+i-padding,x*stride+j-padding] * weight[k,c,i,j].

    Axes: n images of c channels and h x w pixels; k output channels; filters of r rows and s columns; the output has
    p rows and q columns. The image counts as zero outside its borders. `layout` orders image, weight and output.
    `epilogue` adds a bias to each output channel, then `residual` ("bias_add", "bias_add_relu"), then applies ReLU,
    hardswish (x times hardsigmoid) or hardsigmoid, which is (x + 3) / 6 between 0 and 1.
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
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {
        "layout": ("nchw", "nhwc"),
        "epilogue": ("none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"),
        "dtype": ("f32", "bf16"),
    }
    library = "torch"
    flops_are_a_floor = False  # Winograd and FFT get by with fewer

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image, weight and, where they exist, bias and residual, outermost first."""
        others = {} if self.epilogue == "none" else {"bias": "k"}
        if self.has_residual:
            others["residual"] = self.outputs["out"]
        if self.layout == "nchw":
            return {"image": "n c h w", "weight": "k c r s", **others}
        return {"image": "n h w c", "weight": "k r s c", **others}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n k p q" if self.layout == "nchw" else "n p q k"}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """The filters' and the bias's by one conv2d_wgrad, the image's by conv2d_dgrad; a ReLU's mask goes first.

        The image is then done with before its gradient needs as much memory. None for hardswish and hardsigmoid: in
        training, `elementwise` applies them to a stored sum.
        """
        if self.activation not in ("", "relu"):
            return None
        entries, dout = [], "d.out"
        if self.activation and wanted:
            elements, dout = self.n * self.k * self.p * self.q, "out.masked"
            axes = {"n": elements, "dtype": self.dtype}
            entries.append(Gradient("relu_backward", axes, {"out": "out", "dout": "d.out"}, {"dx": dout}))
        if "residual" in wanted:
            entries += passed_on(dout, "d.residual")
        shape = {name: value for name, value in self.axes.items() if name != "epilogue"}
        found = {f"d{name}": f"d.{name}" for name in ("weight", "bias") if name in wanted}
        if found:
            axes = {**shape, "bias": "yes" if "bias" in wanted else "no"}
            entries.append(Gradient("conv2d_wgrad", axes, {"image": "image", "dout": dout}, found))
        if "image" in wanted:
            entries.append(Gradient("conv2d_dgrad", shape, {"dout": dout, "weight": "weight"}, {"dimage": "d.image"}))
        return entries

    def flops(self) -> int:
        """Return two FLOPs per filter element and output element, padding included; the epilogue is not counted."""
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.c * self.r * self.s

    def reference(
        self,
        image: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        residual: np.ndarray | None = None,
    ) -> np.ndarray:
        """One matrix product per image and filter position, so that memory stays near one image at full size."""
        image, weight = self.channels_first(image), self.channels_first(weight)
        out = np.zeros((self.n, self.k, self.p * self.q), like=image)
        for index in range(self.n):
            padded = self.pad(image[index])
            for i, j in np.ndindex(self.r, self.s):
                rows, columns = self.pixels_under(i, j)
                out[index] += weight[:, :, i, j] @ padded[:, rows, columns].reshape(self.c, -1)
        if bias is not None:
            out += bias[:, None]
        if residual is not None:
            out += self.channels_first(residual).reshape(out.shape)
        return self.in_layout(self.activated(out).reshape(self.n, self.k, self.p, self.q))

    @classmethod
    def examples(cls) -> Sequence[Conv2d]:
        """Every filter shape, stride, padding and mode, with odd channels and sizes that no tile divides."""
        bias, relu, add = {"epilogue": "bias"}, {"epilogue": "bias_relu"}, {"epilogue": "bias_add_relu"}
        swish, sigmoid, total = ({"epilogue": f"bias_{name}"} for name in ("hardswish", "hardsigmoid", "add"))
        nhwc, bf16 = {"layout": "nhwc"}, {"dtype": "bf16"}
        return [
            cls(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
            cls(n=3, c=37, h=13, w=11, k=41, r=1, s=1),
            cls(n=1, c=8, h=33, w=32, k=36, r=1, s=1),
            cls(n=2, c=11, h=19, w=17, k=13, r=3, s=3, padding=1),
            cls(n=1, c=64, h=8, w=10, k=12, r=3, s=3, padding=1),
            cls(n=3, c=3, h=21, w=37, k=7, r=3, s=3, stride=2),
            cls(n=1, c=5, h=14, w=15, k=9, r=3, s=5, stride=3, padding=2),
            cls(n=2, c=3, h=11, w=9, k=19, r=5, s=5, padding=2),
            cls(n=1, c=2, h=13, w=15, k=5, r=7, s=7, stride=2, padding=3),
            cls(n=2, c=1, h=35, w=51, k=29, r=11, s=11, stride=4, padding=1),
            cls(n=1, c=1, h=1, w=1, k=3, r=1, s=1, layout="nhwc"),
            cls(n=2, c=37, h=13, w=11, k=41, r=1, s=1, layout="nhwc"),
            cls(n=2, c=11, h=19, w=17, k=13, r=3, s=3, padding=1, layout="nhwc"),
            cls(n=1, c=24, h=9, w=10, k=68, r=3, s=3, stride=2, padding=1, layout="nhwc"),
            cls(n=3, c=4, h=14, w=15, k=9, r=3, s=5, stride=3, padding=2, layout="nhwc"),
            cls(n=1, c=3, h=35, w=51, k=7, r=11, s=11, stride=4, padding=3, layout="nhwc"),
            cls(n=2, c=9, h=13, w=11, k=14, r=3, s=3, padding=1, **bias),
            cls(n=1, c=3, h=23, w=18, k=21, r=5, s=5, stride=2, padding=2, **relu),
            cls(n=2, c=19, h=9, w=7, k=33, r=1, s=1, **relu),
            cls(n=1, c=12, h=11, w=14, k=17, r=3, s=3, padding=1, **bf16),
            cls(n=2, c=1, h=27, w=19, k=12, r=5, s=3, stride=2, padding=1, **relu, **bf16),
            cls(n=2, c=8, h=10, w=10, k=12, r=3, s=3, **nhwc),
            cls(n=1, c=12, h=15, w=10, k=72, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=2, c=36, h=9, w=8, k=23, r=3, s=3, padding=1, **nhwc, **relu),
            cls(n=1, c=72, h=18, w=5, k=17, r=3, s=3, padding=1, **nhwc, **relu),
            cls(n=1, c=36, h=7, w=8, k=10, r=5, s=5, padding=2, **nhwc, **relu),
            cls(n=1, c=1, h=29, w=31, k=24, r=11, s=11, stride=4, **nhwc, **relu),
            cls(n=2, c=64, h=13, w=8, k=2, r=1, s=1, **nhwc, **bias),
            cls(n=1, c=16, h=12, w=13, k=136, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=3, c=72, h=6, w=7, k=65, r=3, s=2, stride=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c=3, h=20, w=17, k=64, r=3, s=3, padding=1, **nhwc, **relu, **bf16),
            cls(n=2, c=40, h=17, w=11, k=64, r=3, s=3, padding=1, **nhwc, **relu, **bf16),
            cls(n=1, c=8, h=35, w=65, k=16, r=2, s=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=3, c=72, h=6, w=7, k=72, r=3, s=2, stride=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=1, c=37, h=11, w=9, k=1, r=1, s=1, **nhwc, **bias, **bf16),
            cls(n=2, c=72, h=7, w=9, k=3, r=1, s=1, **nhwc, **bf16),
            cls(n=1, c=1, h=19, w=75, k=90, r=11, s=11, stride=4, padding=1, **nhwc, **relu),
            cls(n=2, c=1, h=17, w=35, k=91, r=5, s=5, stride=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=1, c=2, h=16, w=16, k=11, r=3, s=3, padding=1, **bias),
            cls(n=1, c=40, h=33, w=32, k=2, r=1, s=1, **nhwc, **relu),
            cls(n=1, c=88, h=7, w=6, k=34, r=2, s=2, **nhwc, **relu),
            cls(n=1, c=1, h=13, w=23, k=26, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=1, c=1, h=13, w=23, k=26, r=3, s=3, padding=1, **nhwc),
            cls(n=2, c=3, h=12, w=9, k=6, r=5, s=5, stride=2, padding=2, **nhwc, **bias),
            cls(n=2, c=3, h=12, w=9, k=6, r=5, s=5, stride=2, padding=2, **nhwc, **bias, **bf16),
            cls(n=1, c=1, h=16, w=16, k=19, r=5, s=5, padding=2, **nhwc, **bias),
            cls(n=1, c=40, h=4, w=16, k=40, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=2, c=5, h=9, w=8, k=7, r=3, s=3, padding=1, **add),
            cls(n=2, c=5, h=9, w=8, k=7, r=3, s=3, padding=1, **add, **bf16),
            cls(n=2, c=40, h=9, w=11, k=72, r=1, s=1, **nhwc, **add),
            cls(n=2, c=36, h=9, w=8, k=23, r=3, s=3, stride=2, padding=1, **nhwc, **add),
            cls(n=1, c=3, h=5, w=4, k=6, r=2, s=2, **nhwc, **add),
            cls(n=2, c=72, h=9, w=11, k=136, r=1, s=1, **nhwc, **add, **bf16),
            cls(n=1, c=37, h=11, w=9, k=21, r=3, s=3, padding=1, **nhwc, **add, **bf16),
            cls(n=2, c=5, h=9, w=8, k=7, r=3, s=3, padding=1, **swish),
            cls(n=1, c=9, h=4, w=5, k=34, r=1, s=1, **sigmoid),
            cls(n=1, c=9, h=1, w=1, k=34, r=1, s=1, **sigmoid, **bf16),
            cls(n=1, c=12, h=7, w=5, k=9, r=1, s=1, **total),
            cls(n=1, c=3, h=13, w=18, k=16, r=3, s=3, stride=2, padding=1, **nhwc, **swish),
            cls(n=1, c=3, h=13, w=18, k=16, r=3, s=3, stride=2, padding=1, **nhwc, **swish, **bf16),
            cls(n=1, c=144, h=5, w=4, k=24, r=1, s=1, **nhwc, **swish),
            cls(n=1, c=72, h=7, w=6, k=72, r=1, s=1, **nhwc, **swish, **bf16),
            cls(n=2, c=144, h=1, w=1, k=22, r=1, s=1, **nhwc, **sigmoid),
            cls(n=1, c=72, h=3, w=3, k=24, r=1, s=1, **nhwc, **sigmoid, **bf16),
            cls(n=2, c=144, h=4, w=3, k=22, r=1, s=1, **nhwc, **total),
            cls(n=1, c=72, h=9, w=7, k=40, r=1, s=1, **nhwc, **total, **bf16),
            cls(n=1, c=7, h=6, w=5, k=13, r=3, s=3, padding=1, **nhwc, **total, **bf16),
        ]
