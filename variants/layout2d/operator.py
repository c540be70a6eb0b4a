"""layout2d: convert images from nchw to nhwc or back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Gradient, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Layout2d(Operator):
    """out is x in the layout `to`, x in the other one: n transpositions of rows x cols in memory.

    `dtype` stores both arrays.
    """

    n: int
    c: int
    h: int
    w: int
    to: str = "nhwc"
    dtype: str = "f32"

    special_inputs = {"x": ("tiny", "infinite")}
    choices = {"to": ("nhwc", "nchw"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("x",)

    @property
    def rows(self) -> int:
        """Rows of x per image: channels of nchw, pixels of nhwc."""
        return self.c if self.to == "nhwc" else self.h * self.w

    @property
    def cols(self) -> int:
        """Columns of x per image."""
        return self.h * self.w if self.to == "nhwc" else self.c

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the image as it comes."""
        return {"x": "n c h w" if self.to == "nhwc" else "n h w c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the image as it goes."""
        return {"out": "n h w c" if self.to == "nhwc" else "n c h w"}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The output's gradient in the layout that the image came in."""
        axes = {**self.axes, "to": "nchw" if self.to == "nhwc" else "nhwc"}
        return [Gradient("layout2d", axes, {"x": "d.out"}, {"out": "d.x"})] if wanted else []

    def reference(self, x: np.ndarray) -> np.ndarray:
        """NumPy's own."""
        return x.transpose((0, 2, 3, 1) if self.to == "nhwc" else (0, 3, 1, 2)).copy()

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Layout2d]:
        """Both ways and dtypes, with channels and planes that vectors and tiles divide and that none does."""
        shapes = [(1, 1, 1, 1), (2, 3, 35, 31), (1, 32, 8, 8), (2, 37, 3, 11), (1, 66, 6, 10), (1, 96, 9, 8)]
        return [
            cls(n=n, c=c, h=h, w=w, to=to, dtype=dtype)
            for to in ("nhwc", "nchw")
            for dtype in ("f32", "bf16")
            for n, c, h, w in shapes
        ]
