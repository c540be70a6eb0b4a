"""split: split an image into two along its channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import ConcatGeometry, Gradient, Tolerance


@dataclass(frozen=True, kw_only=True)
class Split(ConcatGeometry):
    """a = x's first c1 channels, b = its other c2, pixel by pixel.

    In memory x holds `outer` pairs of runs: of whole images (nchw) or of one pixel's channels (nhwc). `layout`
    orders all arrays, `dtype` stores them.
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"

    special_inputs = {"x": ("tiny", "infinite")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("x",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        return {"x": self.joined_axes()}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        return self.part_axes()

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The gradients of the parts, joined."""
        return [Gradient("concat", self.axes, {"a": "d.a", "b": "d.b"}, {"out": "d.x"})] if wanted else []

    def reference(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """NumPy's own."""
        a, b = np.split(x, [self.c1], 1 if self.layout == "nchw" else 3)
        return {"a": a, "b": b}

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Split]:
        """Both layouts and dtypes, with runs that vectors divide and that none does."""
        shapes = [
            (1, 1, 1, 1, 1),
            (1, 3, 5, 33, 32),
            (1, 8, 16, 5, 7),
            (1, 16, 8, 3, 9),
            (2, 4, 2, 7, 4),
            (1, 7, 13, 11, 5),
        ]
        modes = [(layout, dtype) for layout in ("nchw", "nhwc") for dtype in ("f32", "bf16")]
        return [
            cls(n=n, c1=c1, c2=c2, h=h, w=w, layout=layout, dtype=dtype)
            for layout, dtype in modes
            for n, c1, c2, h, w in shapes
        ]
