"""upsample_concat_conv2d: a convolution of a large and an upsampled small image, as in the decoder of UNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, UsageError


@dataclass(frozen=True, kw_only=True)
class UpsampleConcatConv2d(Operator):
    """out = conv2d(concat(skip, low enlarged twice by the nearest pixel)), skip's c2 channels before low's c1.

    Axes: n images; low has c1 channels of h x w pixels, skip c2 of 2h x 2w; k output channels; filters of r rows and s
    columns at a stride of 1; the output has p rows and q columns. The joined image counts as zero outside its borders.
    `layout` orders images, weight and output. `epilogue` adds a bias to each output channel, then clips at zero.
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    k: int
    r: int
    s: int
    padding: int = 0
    layout: str = "nchw"
    epilogue: str = "none"
    dtype: str = "f32"

    choices = {
        "layout": ("nchw", "nhwc"),
        "epilogue": ("none", "bias", "bias_relu"),
        "dtype": ("f32", "bf16"),
    }
    library = "torch"
    flops_are_a_floor = False  # as any convolution; and an enlarged image needs 2 x 2 sums of weights only, not 3 x 3

    @property
    def degree(self) -> int | None:
        """2, as long as no bias is added, which is of degree 1."""
        return 2 if self.epilogue == "none" else None

    @property
    def c(self) -> int:
        """Channels that are convolved."""
        return self.c1 + self.c2

    @property
    def height(self) -> int:
        """Rows of skip."""
        return 2 * self.h

    @property
    def width(self) -> int:
        """Columns of skip."""
        return 2 * self.w

    @property
    def p(self) -> int:
        """Height of the output."""
        return self.height + 2 * self.padding - self.r + 1

    @property
    def q(self) -> int:
        """Width of the output."""
        return self.width + 2 * self.padding - self.s + 1

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of both images, weight and, where there is one, bias, outermost first."""
        bias = {} if self.epilogue == "none" else {"bias": "k"}
        if self.layout == "nchw":
            return {"low": "n c1 h w", "skip": "n c2 height width", "weight": "k c r s", **bias}
        return {"low": "n h w c1", "skip": "n height width c2", "weight": "k r s c", **bias}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n k p q" if self.layout == "nchw" else "n p q k"}

    def validate(self) -> None:
        """Refuse an image without channels, an empty filter and one that does not fit into the padded image."""
        if self.c1 < 1 or self.c2 < 1:
            raise UsageError(
                f"{self.name}: c1={self.c1}, c2={self.c2} is not allowed; use at least 1 channel for each of c1 and c2",
                kind="not-allowed",
                subject="c1" if self.c1 < 1 else "c2",
                value=min(self.c1, self.c2),
                allowed=">= 1",
            )
        if self.r < 1 or self.s < 1:
            raise UsageError(
                f"{self.name}: a filter of {self.r}x{self.s} is empty; use at least 1 for each of r and s",
                kind="not-allowed",
                subject="r" if self.r < 1 else "s",
                value=min(self.r, self.s),
                allowed=">= 1",
            )
        if self.p < 1 or self.q < 1:
            raise UsageError(
                f"{self.name}: a filter of {self.r}x{self.s} does not fit into an image of {self.height}x{self.width} "
                f"with padding {self.padding}, so the output would be empty; choose a smaller filter or more padding",
                kind="filter-too-large",
                subject=self.name,
                value=(self.r, self.s),
                allowed=(self.height, self.width),
            )

    def flops(self) -> int:
        """Return two FLOPs per filter element and output element, padding included; the epilogue is not counted."""
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s

    def reduction(self) -> int:
        """Return the products that are added up for an output element."""
        return self.c * self.r * self.s

    def reference(
        self, low: np.ndarray, skip: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        """Image by image: repeat rows and columns, concatenate, then one matrix product per filter position."""
        channels_first = self.layout == "nchw"
        if not channels_first:
            low, skip, weight = (array.transpose(0, 3, 1, 2) for array in (low, skip, weight))
        out = np.zeros((self.n, self.k, self.p * self.q), like=low)
        border = ((0, 0), (self.padding, self.padding), (self.padding, self.padding))
        for index in range(self.n):
            padded = np.pad(np.concatenate((skip[index], low[index].repeat(2, 1).repeat(2, 2)), 0), border)
            for i in range(self.r):
                for j in range(self.s):
                    window = padded[:, i : i + self.p, j : j + self.q]
                    out[index] += weight[:, :, i, j] @ window.reshape(self.c, -1)
        if bias is not None:
            out += bias[:, None]
        if self.epilogue == "bias_relu":
            np.maximum(out, 0.0, out=out)
        out = out.reshape(self.n, self.k, self.p, self.q)
        return out if channels_first else out.transpose(0, 2, 3, 1).copy()

    @classmethod
    def examples(cls) -> Sequence[UpsampleConcatConv2d]:
        """Every mode; channels and widths that vectors and tiles divide and that none does; filters even and odd."""
        bias, relu = {"epilogue": "bias"}, {"epilogue": "bias_relu"}
        nhwc, bf16 = {"layout": "nhwc"}, {"dtype": "bf16"}
        return [
            cls(n=1, c1=1, c2=1, h=1, w=1, k=1, r=1, s=1),
            cls(n=1, c1=2, c2=1, h=17, w=16, k=8, r=3, s=3, padding=1),
            cls(n=1, c1=3, c2=4, h=3, w=5, k=5, r=2, s=5, padding=2, **relu),
            cls(n=1, c1=4, c2=2, h=5, w=2, k=6, r=3, s=3, padding=1, **bias, **bf16),
            cls(n=2, c1=20, c2=17, h=4, w=9, k=70, r=3, s=3, padding=1, **relu),
            cls(n=3, c1=16, c2=35, h=3, w=4, k=130, r=3, s=2, padding=1, **bf16),
            cls(n=1, c1=1, c2=1, h=1, w=1, k=3, r=1, s=1, **nhwc),
            cls(n=2, c1=7, c2=9, h=5, w=3, k=13, r=3, s=3, padding=1, **nhwc),
            cls(n=1, c1=24, c2=12, h=5, w=4, k=68, r=3, s=3, padding=1, **nhwc, **relu),
            cls(n=3, c1=20, c2=8, h=3, w=4, k=23, r=3, s=2, padding=1, **nhwc, **bias),
            cls(n=5, c1=16, c2=12, h=1, w=1, k=9, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=1, c1=8, c2=16, h=4, w=4, k=33, r=3, s=3, padding=1, **nhwc),
            cls(n=1, c1=8, c2=24, h=2, w=5, k=11, r=3, s=3, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c1=12, c2=36, h=3, w=5, k=9, r=5, s=5, padding=2, **nhwc),
            cls(n=1, c1=40, c2=30, h=4, w=3, k=35, r=2, s=4, **nhwc, **relu),
            cls(n=1, c1=16, c2=8, h=5, w=7, k=72, r=3, s=3, padding=1, **nhwc, **relu, **bf16),
            cls(n=3, c1=8, c2=72, h=3, w=2, k=65, r=3, s=2, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c1=64, c2=64, h=2, w=3, k=130, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=2, c1=5, c2=3, h=5, w=4, k=9, r=3, s=3, padding=1, **nhwc, **relu, **bf16),
            cls(n=1, c1=13, c2=20, h=4, w=3, k=1, r=1, s=1, **nhwc, **bf16),
            cls(n=1, c1=16, c2=72, h=3, w=9, k=16, r=3, s=3, padding=1, **nhwc, **bias, **bf16),
            cls(n=2, c1=24, c2=8, h=17, w=2, k=8, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=1, c1=8, c2=36, h=3, w=9, k=10, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=1, c1=36, c2=4, h=2, w=10, k=6, r=3, s=3, padding=1, **nhwc),
            cls(n=2, c1=72, c2=16, h=17, w=3, k=66, r=3, s=3, padding=1, **nhwc, **relu),
            cls(n=1, c1=8, c2=72, h=2, w=9, k=10, r=3, s=3, padding=1, **nhwc, **bias),
            cls(n=3, c1=16, c2=8, h=1, w=1, k=6, r=3, s=3, padding=1, **nhwc),
        ]
