"""conv3d: convolution of volumes with filters; with strides, dilation and groups, and for images and lines as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Conv3dGeometry, UsageError


@dataclass(frozen=True, kw_only=True)
class Conv3d(Conv3dGeometry):
    """out[n,k,z,y,x] = sum over c,a,i,j of image[n,c,front+a*dilation_d,top+i*dilation_h,left+j*dilation_w] * weight.

    front = z * stride_d - padding_d, top = y * stride_h - padding_h, left = x * stride_w - padding_w, and the weight is
    weight[k,c,a,i,j]. Axes: n volumes of c channels and d x h x w voxels; k output channels; filters of t x r x s. The
    volume counts as zero outside its borders. With `groups`, an output channel sees only the channels of its own
    group. With d = t = 1 the volumes are images; with d = h = t = r = 1 they are lines. `layout` orders image, weight
    and output: "nchw" is n c d h w, and "nhwc" is n d h w c. `epilogue` adds a bias to each output channel, then clips
    at zero.
    """

    n: int
    c: int
    d: int
    h: int
    w: int
    k: int
    t: int
    r: int
    s: int
    stride_d: int = 1
    stride_h: int = 1
    stride_w: int = 1
    padding_d: int = 0
    padding_h: int = 0
    padding_w: int = 0
    dilation_d: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    layout: str = "nchw"
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {
        "layout": ("nchw", "nhwc"),
        "epilogue": ("none", "bias", "bias_relu"),
        "dtype": ("f32", "bf16"),
    }
    library = "torch"
    flops_are_a_floor = (
        False  # Winograd and FFT get by with fewer, and products with zeros of the border can be left out
    )

    @property
    def degree(self) -> int | None:
        """2, as long as no bias is added, which is of degree 1."""
        return 2 if self.epilogue == "none" else None

    @property
    def linear_in(self) -> Sequence[str]:
        """Each input alone, the bias too, unless a ReLU follows."""
        return () if self.epilogue == "bias_relu" else tuple(self.inputs)

    def outputs_along(self, axis: str, size: int, taps: int) -> int:
        """Return the outputs along one axis of `size` voxels, for a filter of so many elements."""
        padding, dilation = self.axes[f"padding_{axis}"], self.axes[f"dilation_{axis}"]
        return (size + 2 * padding - dilation * (taps - 1) - 1) // self.axes[f"stride_{axis}"] + 1

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image, weight and, where there is one, bias, outermost first."""
        bias = {} if self.epilogue == "none" else {"bias": "k"}
        if self.layout == "nchw":
            return {"image": "n c d h w", "weight": "k group_channels t r s", **bias}
        return {"image": "n d h w c", "weight": "k t r s group_channels", **bias}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n k z p q" if self.layout == "nchw" else "n z p q k"}

    def validate(self) -> None:
        """Refuse strides, dilations and groups below 1, groups that do not divide, and filters that do not fit."""
        super().validate()
        if min(self.z, self.p, self.q) < 1:
            raise UsageError(
                f"conv3d: a filter of {self.t}x{self.r}x{self.s} with its dilation does not fit into a volume of "
                f"{self.d}x{self.h}x{self.w} with its padding, so the output would be empty; choose a "
                "smaller filter or more padding",
                kind="filter-too-large",
                subject="conv3d",
                value=(self.t, self.r, self.s),
                allowed=(self.d, self.h, self.w),
            )

    def flops(self) -> int:
        """Return two FLOPs per filter element and output element, padding included; the epilogue is not counted."""
        return 2 * self.n * self.k * self.z * self.p * self.q * self.reduction()

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.group_channels * self.t * self.r * self.s

    def reference(self, image: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """One matrix product per volume, filter position and group, so that memory stays near one volume."""
        image, weight = self.channels_first(image), self.channels_first(weight)
        weight = weight.reshape(self.groups, self.group_filters, self.group_channels, self.t, self.r, self.s)
        out = np.zeros((self.n, self.groups, self.group_filters, self.z * self.p * self.q), like=image)
        border = ((0, 0), *((padding, padding) for padding in (self.padding_d, self.padding_h, self.padding_w)))

        def seen(tap: int, axis: str, outputs: int) -> slice:
            """The voxels along an axis that one element of the filter meets."""
            stride, start = self.axes[f"stride_{axis}"], tap * self.axes[f"dilation_{axis}"]
            return slice(start, start + (outputs - 1) * stride + 1, stride)

        for index in range(self.n):
            padded = np.pad(image[index], border)
            for a, i, j in np.ndindex(self.t, self.r, self.s):
                window = padded[:, seen(a, "d", self.z), seen(i, "h", self.p), seen(j, "w", self.q)]
                out[index] += weight[..., a, i, j] @ window.reshape(self.groups, self.group_channels, -1)
        out = out.reshape(self.n, self.k, self.z, self.p, self.q)
        if bias is not None:
            out += bias[:, None, None, None]
        if self.epilogue == "bias_relu":
            np.maximum(out, 0.0, out=out)
        return self.in_layout(out)

    @classmethod
    def examples(cls) -> Sequence[Conv3d]:
        """Volumes, images and lines; every stride, padding, dilation and mode; groups; sizes that no tile divides."""
        nhwc, bf16, bias, relu = {"layout": "nhwc"}, {"dtype": "bf16"}, {"epilogue": "bias"}, {"epilogue": "bias_relu"}
        same = {"padding_h": 1, "padding_w": 1}
        image, line = {"d": 1, "t": 1, "r": 3, "s": 3}, {"d": 1, "h": 1, "t": 1, "r": 1}
        return [
            cls(n=1, c=1, d=1, h=1, w=1, k=1, t=1, r=1, s=1),
            cls(n=2, c=3, d=5, h=6, w=7, k=4, t=3, r=3, s=3, padding_d=1, **same, **bias),
            cls(n=1, c=2, d=7, h=9, w=8, k=9, t=2, r=3, s=5, stride_d=2, stride_h=3, padding_w=2, dilation_w=2, **relu),
            cls(n=1, c=6, h=34, w=34, k=4, **image, groups=2, **bf16),
            cls(
                n=2, c=4, h=11, w=9, k=6, **image, padding_h=2, padding_w=3, dilation_h=2, dilation_w=3, **bias, **bf16
            ),
            cls(n=2, c=5, w=64, k=7, **line, s=4, stride_w=3, dilation_w=2, padding_w=3),
            cls(n=1, c=8, w=37, k=16, **line, s=3, groups=8, stride_w=2, **relu, **bf16),
            cls(n=1, c=2, d=3, h=2, w=64, k=16, t=1, r=1, s=1),
            cls(n=1, c=1, d=1, h=1, w=1, k=2, t=1, r=1, s=1, **nhwc),
            cls(n=1, c=4, d=5, h=4, w=6, k=7, t=3, r=2, s=3, padding_d=1, padding_w=1, **nhwc, **relu),
            cls(n=2, c=12, h=8, w=11, k=20, **image, **same, stride_h=2, dilation_w=2, **nhwc),
            cls(n=1, c=8, h=34, w=34, k=4, **image, groups=2, **nhwc, **bias),
            cls(n=1, c=16, d=4, h=5, w=6, k=24, t=2, r=3, s=3, padding_d=1, **same, **nhwc, **bf16),
            cls(n=2, c=3, d=3, h=6, w=5, k=11, t=3, r=3, s=1, padding_h=1, **nhwc, **bias, **bf16),
            cls(n=1, c=96, d=3, h=8, w=11, k=8, t=2, r=2, s=3, padding_d=1, padding_w=1, **nhwc, **relu, **bf16),
            cls(n=1, c=8, d=4, h=9, w=10, k=96, t=3, r=3, s=1, padding_d=1, padding_h=1, **nhwc, **bias, **bf16),
            cls(n=2, c=64, d=4, h=11, w=10, k=8, t=2, r=1, s=3, stride_d=2, dilation_d=2, padding_d=2, **nhwc, **bias),
            cls(n=1, c=4, d=3, h=4, w=9, k=2, t=2, r=2, s=2, **nhwc),
            cls(n=1, c=64, h=9, w=10, k=64, **image, **same, groups=8, **nhwc, **bf16),
            cls(n=2, c=32, h=11, w=8, k=32, **image, **same, groups=2, stride_h=2, stride_w=2, **nhwc, **relu, **bf16),
            cls(n=2, c=72, h=14, w=61, k=72, **image, **same, groups=9, **nhwc, **bias, **bf16),
            cls(n=1, c=32, h=33, w=7, k=32, **image, **same, groups=2, **nhwc, **relu, **bf16),
            cls(n=1, c=96, d=3, h=6, w=7, k=96, t=3, r=3, s=3, padding_d=1, groups=12, **nhwc, **bias, **bf16),
            cls(n=1, c=24, w=61, k=32, **line, s=3, stride_w=2, dilation_w=4, padding_w=4, **nhwc, **bias, **bf16),
            cls(n=1, c=16, w=256, k=8, **line, s=3, **nhwc, **relu),
        ]
