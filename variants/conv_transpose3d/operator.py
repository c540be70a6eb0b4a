"""conv_transpose3d: transposed convolution of volumes, images and lines, which enlarges them by its strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Conv3dGeometry, UsageError


@dataclass(frozen=True, kw_only=True)
class ConvTranspose3d(Conv3dGeometry):
    """out[n,k,front+a*dilation_d,top+i*dilation_h,left+j*dilation_w] += image[n,c,z,y,x] * weight[c,k,a,i,j].

    front = z * stride_d - padding_d, top = y * stride_h - padding_h, and left = x * stride_w - padding_w; the sum is
    over c,z,y,x,a,i,j, and places outside of the output are left out. Axes: n volumes of c channels and d x h x w
    voxels; k output channels; filters of t x r x s. `output_padding` makes the output larger at its end. With `groups`,
    an output channel sees only the channels of its own group. With d = t = 1 the volumes are images; with
    d = h = t = r = 1 they are lines. `layout` orders image, weight and output: "nchw" is n c d h w, and "nhwc" is
    n d h w c. `epilogue` adds a bias to each output channel, then clips at zero.
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
    output_padding_d: int = 0
    output_padding_h: int = 0
    output_padding_w: int = 0
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
    flops_are_a_floor = False  # products whose place is cut off by the padding can be left out

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
        whole = (size - 1) * self.axes[f"stride_{axis}"] + self.axes[f"dilation_{axis}"] * (taps - 1) + 1
        return whole + self.axes[f"output_padding_{axis}"] - 2 * self.axes[f"padding_{axis}"]

    @property
    def class_outputs(self) -> int:
        """Return the outputs of the largest class: those of one residue modulo the stride along each axis."""
        return self.n * -(-self.z // self.stride_d) * -(-self.p // self.stride_h) * -(-self.q // self.stride_w)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of image, weight and, where there is one, bias, outermost first."""
        bias = {} if self.epilogue == "none" else {"bias": "k"}
        if self.layout == "nchw":
            return {"image": "n c d h w", "weight": "c group_filters t r s", **bias}
        return {"image": "n d h w c", "weight": "c t r s group_filters", **bias}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n k z p q" if self.layout == "nchw" else "n z p q k"}

    def validate(self) -> None:
        """Refuse sizes below 1, groups that do not divide, and an output padding that no other size would need."""
        super().validate()
        for axis in "dhw":
            most = max(self.axes[f"stride_{axis}"], self.axes[f"dilation_{axis}"]) - 1
            if self.axes[f"output_padding_{axis}"] > most:
                raise UsageError(
                    f"conv_transpose3d: output_padding_{axis}={self.axes[f'output_padding_{axis}']} is not "
                    f"allowed, because output padding must be less than the stride or the dilation; use at most {most}",
                    kind="padding-too-large",
                    subject=f"conv_transpose3d.output_padding_{axis}",
                    value=self.axes[f"output_padding_{axis}"],
                    allowed=most,
                )
        if min(self.z, self.p, self.q) < 1:
            raise UsageError(
                f"conv_transpose3d: the padding leaves an output of {self.z}x{self.p}x{self.q}, which is empty; "
                "use less padding",
                kind="empty-output",
                subject="conv_transpose3d",
                value=(self.z, self.p, self.q),
                allowed=1,
            )

    def flops(self) -> int:
        """Return two FLOPs per voxel and filter element, also where the padding cuts off the place."""
        return 2 * self.n * self.c * self.d * self.h * self.w * self.group_filters * self.t * self.r * self.s

    def reduction(self) -> int:
        """Return the most products that are added up for an output element."""
        pairs = [(self.axes[f"stride_{axis}"], self.axes[f"dilation_{axis}"]) for axis in "dhw"]
        between = [stride // math.gcd(stride, dilation) for stride, dilation in pairs]  # taps that reach one output
        taps = zip((self.t, self.r, self.s), between, strict=True)
        return self.group_channels * math.prod(-(-size // distance) for size, distance in taps)

    def reference(self, image: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """One matrix product per volume, filter position and group, added to the voxels that the position reaches."""
        image, weight = self.channels_first(image), self.channels_first(weight)
        weight = weight.reshape(self.groups, self.group_channels, self.group_filters, self.t, self.r, self.s)
        out = np.zeros((self.n, self.k, self.z, self.p, self.q), like=image)
        sizes = {"d": (self.d, self.z), "h": (self.h, self.p), "w": (self.w, self.q)}
        padding = {axis: self.axes[f"padding_{axis}"] for axis in sizes}

        def reached(tap: int, axis: str) -> slice:
            """The voxels along an axis of the padded output that one element of the filter reaches."""
            stride, start = self.axes[f"stride_{axis}"], tap * self.axes[f"dilation_{axis}"]
            return slice(start, start + (sizes[axis][0] - 1) * stride + 1, stride)

        whole = tuple(outputs + 2 * padding[axis] for axis, (_, outputs) in sizes.items())
        inner = tuple(slice(padding[axis], padding[axis] + outputs) for axis, (_, outputs) in sizes.items())
        for index in range(self.n):
            voxels = image[index].reshape(self.groups, self.group_channels, -1)
            padded = np.zeros((self.k, *whole), like=image)
            for a, i, j in np.ndindex(self.t, self.r, self.s):
                products = weight[..., a, i, j].transpose(0, 2, 1) @ voxels
                padded[:, reached(a, "d"), reached(i, "h"), reached(j, "w")] += products.reshape(
                    self.k, self.d, self.h, self.w
                )
            out[index] = padded[(slice(None), *inner)]
        if bias is not None:
            out += bias[:, None, None, None]
        if self.epilogue == "bias_relu":
            np.maximum(out, 0.0, out=out)
        return self.in_layout(out)

    @classmethod
    def examples(cls) -> Sequence[ConvTranspose3d]:
        """Volumes, images and lines; every stride, padding, dilation and mode; groups; outputs that nothing reaches."""
        nhwc, bf16, bias, relu = {"layout": "nhwc"}, {"dtype": "bf16"}, {"epilogue": "bias"}, {"epilogue": "bias_relu"}
        image, line = {"d": 1, "t": 1}, {"d": 1, "h": 1, "t": 1, "r": 1}
        twice = {"stride_h": 2, "stride_w": 2}
        return [
            cls(n=1, c=1, d=1, h=1, w=1, k=1, t=1, r=1, s=1),
            cls(n=2, c=3, d=3, h=4, w=5, k=4, t=3, r=3, s=3, stride_d=2, **twice, padding_d=1, padding_h=1, padding_w=1,
                output_padding_d=1, output_padding_w=1, **bias),
            cls(n=1, c=2, d=4, h=3, w=5, k=9, t=2, r=3, s=5, stride_h=3, padding_w=2, dilation_d=2, dilation_w=2,
                **relu),
            cls(n=1, c=6, **image, h=16, w=17, k=4, r=3, s=3, **twice, groups=2, **bf16),
            cls(n=2, c=4, **image, h=6, w=5, k=6, r=3, s=3, stride_h=4, stride_w=6, dilation_h=2, dilation_w=3, **bias,
                **bf16),
            cls(n=2, c=5, **line, w=32, k=8, s=4, stride_w=2, padding_w=1),
            cls(n=1, c=8, **line, w=21, k=16, s=1, groups=8, stride_w=3, output_padding_w=2, **relu, **bf16),
            cls(n=1, c=2, d=3, h=2, w=64, k=16, t=1, r=1, s=1),
            cls(n=1, c=1, d=1, h=1, w=1, k=2, t=1, r=1, s=1, **nhwc),
            cls(n=1, c=4, d=3, h=4, w=5, k=7, t=3, r=2, s=3, stride_d=2, stride_w=3, padding_d=1, padding_w=1, **nhwc,
                **relu),
            cls(n=2, c=12, **image, h=8, w=7, k=20, r=2, s=2, **twice, **nhwc),
            cls(n=1, c=8, **image, h=16, w=17, k=4, r=3, s=3, **twice, groups=2, **nhwc, **bias),
            cls(n=1, c=16, d=3, h=4, w=5, k=24, t=2, r=3, s=3, stride_d=2, padding_h=1, padding_w=1, **nhwc, **bf16),
            cls(n=2, c=3, d=2, h=5, w=4, k=11, t=3, r=3, s=1, stride_h=2, padding_h=1, **nhwc, **bias, **bf16),
            cls(n=1, c=72, **image, h=9, w=10, k=64, r=2, s=2, **twice, **nhwc, **bf16),
            cls(n=2, c=32, **image, h=6, w=7, k=48, r=3, s=3, padding_h=1, padding_w=1, **twice, output_padding_h=1,
                groups=2, **nhwc, **relu, **bf16),
            cls(n=1, c=24, **line, w=41, k=32, s=5, stride_w=2, dilation_w=2, padding_w=4, **nhwc, **bias, **bf16),
            cls(n=1, c=16, **line, w=256, k=8, s=3, **nhwc),
            cls(n=2, c=72, **image, h=5, w=16, k=64, r=2, s=2, **twice, **nhwc, **bf16),
            cls(n=1, c=24, d=2, t=2, stride_d=2, h=3, w=16, k=192, r=1, s=3, stride_w=3, **nhwc, **relu, **bf16),
            cls(n=1, c=8, **image, h=9, w=32, k=64, r=3, s=1, stride_h=3, **nhwc, **bias, **bf16),
            cls(n=2, c=36, **image, h=5, w=27, k=64, r=2, s=2, **twice, **nhwc),
            cls(n=1, c=24, d=2, t=2, stride_d=2, h=3, w=11, k=192, r=1, s=3, stride_w=3, **nhwc, **relu),
            cls(n=1, c=8, **image, h=9, w=32, k=64, r=3, s=1, stride_h=3, **nhwc, **bias),
            cls(n=1, c=132, **image, h=8, w=9, k=36, r=2, s=2, **twice, **nhwc, **relu),
            cls(n=1, c=129, **image, h=4, w=8, k=13, r=2, s=2, **twice, **nhwc, **bias),
            cls(n=1, c=128, **image, h=4, w=8, k=12, r=2, s=2, **twice, **nhwc),
        ]  # fmt: skip
