"""conv2d_dgrad: the gradient of a convolution with respect to its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Conv2dGeometry


@dataclass(frozen=True, kw_only=True)
class Conv2dDgrad(Conv2dGeometry):
    """dimage[n,c,y*stride+i-padding,x*stride+j-padding] += weight[k,c,i,j] * dout[n,k,y,x], over all k,y,x,i,j.

    The axes are those of the convolution (see conv2d): h and w of the image, p and q of dout. A pixel that no window
    reaches has the gradient 0. `epilogue` adds a gradient that is there already ("add"), or passes nothing on where
    the ReLU whose output the image is was cut off ("mask": `out` is that output), or adds first and then masks the sum
    ("add_mask").
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
        "epilogue": ("none", "add", "mask", "add_mask"),
        "dtype": ("f32", "bf16"),
    }
    linear_in = ("dout", "weight")
    flops_are_a_floor = False  # Winograd and FFT get by with fewer

    @property
    def degree(self) -> int | None:
        """2, as long as nothing is added, which is of degree 1."""
        return None if self.epilogue.startswith("add") else 2

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first; the last are what the epilogue reads."""
        nchw = self.layout == "nchw"
        image = "n c h w" if nchw else "n h w c"
        skip = {"skip": image} if self.epilogue.startswith("add") else {}
        out = {"out": image} if self.epilogue.endswith("mask") else {}
        return {"dout": "n k p q" if nchw else "n p q k", "weight": "k c r s" if nchw else "k r s c", **skip, **out}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"dimage": "n c h w" if self.layout == "nchw" else "n h w c"}

    def flops(self) -> int:
        """Return the FLOPs of the convolution: two per filter element and element of dout."""
        return 2 * self.n * self.k * self.p * self.q * self.c * self.r * self.s

    def reduction(self) -> int:
        """Return the products that are added up for a pixel and channel, at most."""
        return self.k * self.r * self.s

    def reference(
        self, dout: np.ndarray, weight: np.ndarray, skip: np.ndarray | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """One matrix product per image and filter position, added to the pixels that the position has seen."""
        dout, weight = self.channels_first(dout), self.channels_first(weight)
        dimage = np.zeros((self.n, self.c, self.h, self.w), like=dout)
        for index in range(self.n):
            padded = self.pad(dimage[index])
            for i, j in np.ndindex(self.r, self.s):
                rows, columns = self.pixels_under(i, j)
                products = weight[:, :, i, j].T @ dout[index].reshape(self.k, -1)
                padded[:, rows, columns] += products.reshape(self.c, self.p, self.q)
            dimage[index] = self.crop(padded)
        dimage = self.in_layout(dimage)
        if skip is not None:
            dimage += skip
        if out is not None:
            dimage[out <= 0] = 0.0
        return dimage

    @classmethod
    def examples(cls) -> Sequence[Conv2dDgrad]:
        """Every stride, padding, filter shape and mode; pixels that no window reaches; sizes that no tile divides."""
        add, mask, add_mask = ({"epilogue": name} for name in ("add", "mask", "add_mask"))
        nhwc, bf16 = {"layout": "nhwc"}, {"dtype": "bf16"}
        return [
            cls(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
            cls(n=2, c=37, h=7, w=5, k=41, r=1, s=1),
            cls(n=2, c=11, h=13, w=17, k=13, r=3, s=3, padding=1),
            cls(n=1, c=5, h=33, w=32, k=9, r=3, s=5, stride=3, padding=2),
            cls(n=2, c=3, h=12, w=17, k=7, r=3, s=2, stride=2, **add),
            cls(n=1, c=68, h=6, w=11, k=12, r=3, s=3, padding=1, **mask),
            cls(n=1, c=4, h=9, w=7, k=6, r=1, s=2, stride=3, padding=1, **mask),
            cls(n=1, c=2, h=9, w=11, k=5, r=7, s=5, padding=3, **add),
            cls(n=1, c=3, h=27, w=19, k=4, r=11, s=11, stride=4, padding=2),
            cls(n=1, c=12, h=11, w=14, k=17, r=3, s=3, padding=1, **bf16),
            cls(n=2, c=3, h=13, w=10, k=5, r=5, s=3, stride=2, padding=1, **mask, **bf16),
            cls(n=1, c=7, h=8, w=9, k=10, r=3, s=3, padding=1, **add, **bf16),
            cls(n=1, c=1, h=1, w=1, k=3, r=1, s=1, **nhwc),
            cls(n=2, c=41, h=7, w=5, k=37, r=1, s=1, **nhwc),
            cls(n=1, c=13, h=13, w=11, k=15, r=3, s=3, padding=1, **nhwc),
            cls(n=1, c=68, h=9, w=10, k=24, r=3, s=3, padding=1, **nhwc, **mask),
            cls(n=2, c=36, h=8, w=8, k=16, r=3, s=3, padding=1, **nhwc, **add),
            cls(n=1, c=12, h=14, w=15, k=8, r=3, s=5, stride=3, padding=2, **nhwc, **add),
            cls(n=1, c=5, h=12, w=8, k=7, r=3, s=3, stride=2, padding=1, **nhwc, **mask),
            cls(n=1, c=8, h=9, w=6, k=4, r=1, s=1, stride=2, padding=1, **nhwc),
            cls(n=1, c=10, h=11, w=7, k=20, r=5, s=3, padding=2, **nhwc),
            cls(n=1, c=19, h=11, w=9, k=36, r=5, s=5, padding=2, **nhwc, **mask),
            cls(n=1, c=37, h=19, w=18, k=40, r=3, s=3, **nhwc),
            cls(n=1, c=72, h=8, w=9, k=16, r=3, s=3, padding=1, **nhwc, **bf16),
            cls(n=1, c=65, h=7, w=6, k=24, r=3, s=2, stride=2, padding=1, **nhwc, **mask, **bf16),
            cls(n=2, c=16, h=5, w=9, k=13, r=3, s=3, padding=1, **nhwc, **add, **bf16),
            cls(n=1, c=9, h=10, w=7, k=3, r=1, s=1, **nhwc, **mask, **bf16),
            cls(n=2, c=12, h=33, w=32, k=1, r=1, s=1, **nhwc, **add),
            cls(n=1, c=16, h=11, w=13, k=3, r=1, s=1, **nhwc, **mask, **bf16),
            cls(n=1, c=40, h=11, w=12, k=68, r=3, s=2, padding=1, **nhwc),
            cls(n=1, c=8, h=9, w=6, k=24, r=2, s=2, **nhwc),
            cls(n=1, c=40, h=19, w=10, k=72, r=2, s=3, padding=1, **nhwc, **mask),
            cls(n=2, c=24, h=7, w=11, k=40, r=3, s=3, padding=1, **nhwc, **add),
            cls(n=1, c=72, h=13, w=10, k=88, r=3, s=3, padding=1, **nhwc, **add, **bf16),
            cls(n=2, c=40, h=9, w=7, k=136, r=2, s=3, **nhwc, **mask, **bf16),
            cls(n=1, c=16, h=35, w=66, k=8, r=2, s=2, padding=1, **nhwc, **add, **bf16),
            cls(n=2, c=72, h=11, w=12, k=24, r=3, s=3, stride=2, padding=1, **nhwc, **add),
            cls(n=1, c=40, h=7, w=10, k=132, r=1, s=1, stride=2, **nhwc, **mask),
            cls(n=1, c=19, h=10, w=13, k=40, r=4, s=5, stride=3, padding=2, **nhwc, **add, **bf16),
            cls(n=1, c=24, h=8, w=10, k=36, r=2, s=2, stride=2, **nhwc),
            cls(n=1, c=68, h=5, w=6, k=64, r=3, s=3, stride=2, padding=1, **nhwc, **mask),
            cls(n=2, c=20, h=7, w=4, k=32, r=2, s=3, stride=3, padding=1, **nhwc, **add),
            cls(n=1, c=132, h=18, w=17, k=96, r=3, s=1, stride=2, **nhwc),
            cls(n=1, c=24, h=9, w=7, k=12, r=2, s=3, stride=2, padding=1, **nhwc, **bf16),
            cls(n=2, c=5, h=9, w=10, k=6, r=3, s=3, padding=1, **add_mask),
            cls(n=1, c=68, h=7, w=9, k=16, r=3, s=3, stride=2, padding=1, **nhwc, **add_mask),
            cls(n=2, c=40, h=9, w=8, k=24, r=3, s=3, padding=1, **nhwc, **add_mask),
            cls(n=2, c=136, h=9, w=11, k=72, r=1, s=1, **nhwc, **add_mask, **bf16),
            cls(n=1, c=264, h=13, w=12, k=8, r=1, s=1, **nhwc, **add_mask, **bf16),
            cls(n=1, c=72, h=11, w=9, k=40, r=3, s=3, padding=1, **nhwc, **add_mask, **bf16),
            cls(n=2, c=24, h=8, w=10, k=16, r=3, s=3, stride=2, padding=1, **nhwc, **add_mask, **bf16),
            cls(n=2, c=72, h=8, w=6, k=40, r=1, s=1, stride=2, **nhwc, **bf16),
            cls(n=2, c=136, h=10, w=14, k=72, r=3, s=3, stride=2, padding=1, **nhwc, **bf16),
            cls(n=1, c=9, h=7, w=6, k=5, r=3, s=2, stride=2, padding=1, **add_mask, **bf16),
        ]
