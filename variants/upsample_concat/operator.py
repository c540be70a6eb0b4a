"""upsample_concat: upsample a small image by two and append its channels to a large image, as in UNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Tolerance, UpsampleConcatGeometry


@dataclass(frozen=True, kw_only=True)
class UpsampleConcat(UpsampleConcatGeometry):
    """out = concat(skip, low enlarged twice by the nearest pixel) over the channels, skip's c2 before low's c1.

    low has h x w pixels, skip and out p x q = 2h x 2w. `layout` orders all arrays, `dtype` stores them.
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"

    special_inputs = {"low": ("tiny", "infinite"), "skip": ("tiny", "infinite")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("low", "skip")

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of both images, outermost first."""
        if self.layout == "nchw":
            return {"low": "n c1 h w", "skip": "n c2 p q"}
        return {"low": "n h w c1", "skip": "n p q c2"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        return {"out": "n c p q" if self.layout == "nchw" else "n p q c"}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The gradient of the whole, parted, and the enlarged part's added up."""
        parts = {"dlow": "d.low", "dskip": "d.skip"}
        return [Gradient("upsample_concat_backward", self.axes, {"dout": "d.out"}, parts)] if wanted else []

    def reference(self, low: np.ndarray, skip: np.ndarray) -> np.ndarray:
        """Repeat rows and columns, then concatenate."""
        channels, rows, columns = (1, 2, 3) if self.layout == "nchw" else (3, 1, 2)
        return np.concatenate((skip, low.repeat(2, rows).repeat(2, columns)), channels)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[UpsampleConcat]:
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
