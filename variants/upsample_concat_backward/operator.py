"""upsample_concat_backward: the gradient of upsample_concat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, UpsampleConcatGeometry


@dataclass(frozen=True, kw_only=True)
class UpsampleConcatBackward(UpsampleConcatGeometry):
    """dskip = dout's first c2 channels; dlow[y,z] = the sum of the other c1 over pixels 2y, 2y + 1 and 2z, 2z + 1.

    dlow has h x w pixels, dskip and dout p x q = 2h x 2w. `layout` orders all arrays, `dtype` stores them.
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"

    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    library = "torch"
    degree = 1
    linear_in = ("dout",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the joined gradient, outermost first."""
        return {"dout": "n c p q" if self.layout == "nchw" else "n p q c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of both images, outermost first."""
        if self.layout == "nchw":
            return {"dlow": "n c1 h w", "dskip": "n c2 p q"}
        return {"dlow": "n h w c1", "dskip": "n p q c2"}

    def flops(self) -> int:
        """Return three additions per element of the small image."""
        return 3 * self.n * self.c1 * self.h * self.w

    def reduction(self) -> int:
        """Return the number of large pixels whose gradients a small pixel adds up."""
        return 4

    def reference(self, dout: np.ndarray) -> Arrays:
        """Part, then add up four strided slices."""
        channels, rows, columns = (1, 2, 3) if self.layout == "nchw" else (3, 1, 2)
        moved = np.moveaxis(dout, (channels, rows, columns), (0, 1, 2))
        large = moved[self.c2 :]
        low = large[:, ::2, ::2] + large[:, ::2, 1::2] + large[:, 1::2, ::2] + large[:, 1::2, 1::2]
        back = (0, 1, 2), (channels, rows, columns)
        return {"dlow": np.moveaxis(low, *back), "dskip": np.moveaxis(moved[: self.c2], *back)}

    @classmethod
    def examples(cls) -> Sequence[UpsampleConcatBackward]:
        """Both layouts and dtypes, with channels and widths that vectors divide and that none does."""
        shapes = [
            (1, 1, 1, 1, 1),
            (1, 3, 5, 16, 18),
            (1, 8, 16, 5, 7),
            (1, 16, 8, 3, 8),
            (2, 4, 2, 7, 4),
            (1, 7, 13, 11, 5),
        ]
        modes = [(layout, dtype) for layout in ("nchw", "nhwc") for dtype in ("f32", "bf16")]
        return [
            cls(n=n, c1=c1, c2=c2, h=h, w=w, layout=layout, dtype=dtype)
            for layout, dtype in modes
            for n, c1, c2, h, w in shapes
        ]
