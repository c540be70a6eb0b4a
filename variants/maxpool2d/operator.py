"""maxpool2d: the largest element of each window of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Arrays, Gradient, Pool2dGeometry, Tolerance, UsageError

NONE = 255
"""The position in a window of nothing but NaN and -infinity."""


@dataclass(frozen=True, kw_only=True)
class MaxPool2d(Pool2dGeometry):
    """out[n,c,p,q] = max over r, s < window of x[n, c, p*stride - padding + r, q*stride - padding + s].

    Positions outside the image count as -infinity. A NaN loses every comparison (v > largest), as in the kernels.
    `layout` orders all arrays, `dtype` stores image and output. With `positions` it also writes, in a byte, where in
    the window the largest stands, r*window + s of the first of equal ones, and 255 where nothing is above -infinity:
    what its gradient needs, in place of the image.
    """

    n: int
    c: int
    h: int
    w: int
    window: int = 2
    stride: int = 2
    padding: int = 0
    layout: str = "nchw"
    dtype: str = "f32"
    positions: str = "no"

    special_inputs = {"x": ("ties", "level", "tiny", "far", "infinite", "masked", "finite_mask")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "positions": ("no", "yes")}
    library = "torch"

    @property
    def degree(self) -> int | None:
        """1, but for positions, which do not grow with what stands there."""
        return 1 if self.positions == "no" else None

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the image, outermost first."""
        return {"x": "n c h w" if self.layout == "nchw" else "n h w c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the output, outermost first."""
        pooled = "n c p q" if self.layout == "nchw" else "n p q c"
        return {"out": pooled} | ({"positions": pooled} if self.positions == "yes" else {})

    def tensor_dtype(self, name: str) -> str:
        """A position is a byte."""
        return "u8" if name == "positions" else self.dtype

    def validate(self) -> None:
        """Refuse windows that hold no element of the image, or more than a byte can tell apart."""
        if self.positions == "yes" and self.window > 15:
            raise UsageError(
                f"{self.name}: window={self.window} is not allowed with positions=yes, because a position is stored as "
                "a byte; use a window of at most 15, or positions=no",
                kind="not-allowed",
                subject="window",
                value=self.window,
                allowed="<= 15",
            )
        super().validate()

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Each output's gradient goes to the place of the maximum: as it was noted, else as x says again."""
        axes = {name: value for name, value in self.axes.items() if name != "positions"}
        places = "positions" if self.positions == "yes" else "x"
        if places == "positions":
            axes["search"] = "remembered"
        tied = {places: places, "dout": "d.out"}
        return [Gradient("maxpool2d_backward", axes, tied, {"dx": "d.x"})] if wanted else []

    def comparisons(self) -> int:
        """Return the elements of all windows."""
        return self.n * self.c * self.p * self.q * self.window**2

    def reference(self, x: np.ndarray) -> np.ndarray | Arrays:
        """The maximum over one shifted, strided slice of the padded image per position in the window."""
        image = self.pad(self.channels_first(x), -np.inf)
        out = np.zeros(tuple(self.scope[axis] for axis in self.outputs["out"].split()), like=x) - np.inf
        positions = np.zeros_like(out) + NONE
        largest, places = self.channels_first(out), self.channels_first(positions)
        for r, s in np.ndindex(self.window, self.window):
            rows, columns = self.pixels_under(r, s)
            part = image[:, :, rows, columns]
            if self.positions == "yes":
                places[part > largest] = r * self.window + s
            np.maximum(largest, part, out=largest)
        return {"out": out, "positions": positions} if self.positions == "yes" else out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The results' own sizes: nothing is allowed of them."""
        return {name: np.abs(array) for name, array in self.reference_outputs(inputs).items()}

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are chosen, never rounded."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[MaxPool2d]:
        """The windows of LeNet, AlexNet and UNet and stranger ones, on images of odd, prime and unaligned size."""
        plain = [
            cls(n=1, c=1, h=2, w=2),
            cls(n=2, c=3, h=16, w=24),
            cls(n=1, c=3, h=17, w=31),
            cls(n=3, c=2, h=30, w=54, window=3),
            cls(n=1, c=5, h=13, w=13, window=3),
            cls(n=2, c=2, h=11, w=16, window=3, stride=1, padding=1),
            cls(n=1, c=2, h=15, w=20, window=3, stride=2, padding=1),
            cls(n=1, c=1, h=1, w=1, window=3, stride=1, padding=1),
            cls(n=1, c=7, h=23, w=29, window=5, stride=3, padding=2),
            cls(n=2, c=1, h=12, w=40, window=2, stride=3),
            cls(n=1, c=2, h=6, w=70, window=1, stride=1),
            cls(n=1, c=1, h=9, w=9, window=9, stride=4, padding=4),
            cls(n=33, c=67, h=2, w=3),
            cls(n=2, c=3, h=12, w=32, dtype="bf16"),
            cls(n=1, c=5, h=13, w=22, window=3, dtype="bf16"),
            cls(n=1, c=2, h=9, w=11, window=3, stride=1, padding=1, dtype="bf16"),
            cls(n=1, c=1, h=2, w=2, layout="nhwc"),
            cls(n=1, c=8, h=33, w=32, layout="nhwc"),
            cls(n=1, c=8, h=27, w=13, window=3, layout="nhwc"),
            cls(n=2, c=7, h=9, w=8, window=3, stride=2, padding=1, layout="nhwc"),
            cls(n=1, c=6, h=11, w=12, window=5, stride=3, padding=2, layout="nhwc"),
            cls(n=1, c=24, h=10, w=9, layout="nhwc", dtype="bf16"),
            cls(n=2, c=8, h=13, w=13, window=3, layout="nhwc", dtype="bf16"),
            cls(n=1, c=13, h=7, w=9, window=3, stride=1, padding=1, layout="nhwc", dtype="bf16"),
            cls(n=3, c=4, h=6, w=5, window=2, stride=1, layout="nhwc", dtype="bf16"),
        ]
        return [*plain, *(replace(problem, positions="yes") for problem in plain)]
