"""concat: concatenate two images along their channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import ConcatGeometry, Gradient, Tolerance


@dataclass(frozen=True, kw_only=True)
class Concat(ConcatGeometry):
    """out = a's c1 channels and then b's c2, pixel by pixel.

    In memory out holds `outer` pairs of runs: of whole images (nchw) or of one pixel's channels (nhwc). `layout`
    orders all arrays, `dtype` stores them.
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"

    special_inputs = {"a": ("tiny", "infinite"), "b": ("tiny", "infinite")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    degree = 1
    library = "torch"
    linear_in = ("a", "b")

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        return self.part_axes()

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        return {"out": self.joined_axes()}

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The gradient of the whole, parted."""
        return [Gradient("split", self.axes, {"x": "d.out"}, {"a": "d.a", "b": "d.b"})] if wanted else []

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """NumPy's own."""
        return np.concatenate((a, b), 1 if self.layout == "nchw" else 3)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Concat]:
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
