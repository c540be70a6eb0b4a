"""maxpool2d_backward: each gradient of a maximum goes to the pixel that was it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance, UsageError, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class MaxPool2dBackward(Operator):
    """dx[n,c,y,z] = sum of dout[n,c,p,q] over the windows p, q whose largest element is x[n,c,y,z].

    The largest is found again from x as maxpool2d finds it (v > largest): of equal ones the first, row by row. Windows
    may overlap; pixels that are no window's largest get 0. "add" adds `skip`, a gradient that the image has already,
    as on UNet's way down; "mask" passes nothing on where x <= 0, as the ReLU whose output x is. `layout`
    orders all arrays, `dtype` stores them.
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
    epilogue: str = "none"

    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "epilogue": ("none", "add", "mask")}
    degree = 1  # the places of the maxima do not change with their size
    linear_in = ("dout",)

    @property
    def p(self) -> int:
        """Height of the pooled image."""
        return (self.h + 2 * self.padding - self.window) // self.stride + 1

    @property
    def q(self) -> int:
        """Width of the pooled image."""
        return (self.w + 2 * self.padding - self.window) // self.stride + 1

    @property
    def packs(self) -> int:
        """Vectors of up to 16 bytes that a pixel's channels divide into."""
        lanes = 8 if self.dtype == "bf16" else 4
        while self.c % lanes:
            lanes //= 2
        return self.c // lanes

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        image, pooled = ("n c h w", "n c p q") if self.layout == "nchw" else ("n h w c", "n p q c")
        return {"x": image, "dout": pooled} | ({"skip": image} if self.epilogue == "add" else {})

    @property
    def outputs(self) -> Mapping[str, str]:
        """The image's axes."""
        return {"dx": self.inputs["x"]}

    def validate(self) -> None:
        """Refuse windows that hold no element of the image."""
        if self.window < 1 or self.stride < 1:
            raise UsageError(f"{self}: window and stride must be >= 1")
        if self.padding > self.window // 2:
            raise UsageError(
                f"{self}: padding={self.padding} is not allowed; at most window // 2 = "
                f"{self.window // 2}, so that every window holds an element of the image"
            )
        if min(self.h, self.w) + 2 * self.padding < self.window:
            raise UsageError(
                f"{self}: the window is larger than the padded image of "
                f"{self.h + 2 * self.padding}x{self.w + 2 * self.padding}"
            )

    def flops(self) -> int:
        """An addition per window, and one per pixel where there is something to add to."""
        return self.n * self.c * (self.p * self.q + (self.h * self.w if self.epilogue == "add" else 0))

    def reduction(self) -> int:
        """Windows that may share a pixel, and the gradient that is added."""
        return (-(-self.window // self.stride)) ** 2 + (self.epilogue == "add")

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but x in whole halves: windows then have equal maxima, of which the first counts."""
        arrays = super().make_inputs(seed, integers)
        arrays["x"] = to_storage(np.rint(2 * from_storage(arrays["x"], self.dtype)) / 2, self.dtype)
        return arrays

    def reference(self, x: np.ndarray, dout: np.ndarray, skip: np.ndarray | None = None) -> np.ndarray:
        """Find each window's first maximum, then add up one strided slice per position in the window."""
        if self.layout == "nhwc":
            x, dout = x.transpose(0, 3, 1, 2), dout.transpose(0, 3, 1, 2)
        sides = ((0, 0), (0, 0), (self.padding, self.padding), (self.padding, self.padding))
        image = np.pad(x, sides, constant_values=-np.inf)
        rows, columns = (self.p - 1) * self.stride + 1, (self.q - 1) * self.stride + 1
        positions = [
            (slice(None), slice(None), slice(r, r + rows, self.stride), slice(s, s + columns, self.stride))
            for r in range(self.window)
            for s in range(self.window)
        ]
        largest, place = np.zeros_like(dout) - np.inf, np.zeros_like(dout) - 1
        for number, part in enumerate(positions):
            above = image[part] > largest
            largest, place = np.where(above, image[part], largest), np.where(above, number, place)
        padded = np.zeros_like(image)
        for number, part in enumerate(positions):
            padded[part] += np.where(place == number, dout, 0.0)
        dx = padded[:, :, self.padding : self.padding + self.h, self.padding : self.padding + self.w]
        dx = np.where(x > 0, dx, 0.0) if self.epilogue == "mask" else dx
        dx = dx if self.layout == "nchw" else dx.transpose(0, 2, 3, 1)
        return dx if skip is None else dx + skip

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The gradients' absolute values added up, at the places that the image itself decides."""
        wide = self.widened(inputs)
        return {"dx": self.reference(**{k: a if k == "x" else np.abs(a) for k, a in wide.items()})}

    def tolerance(self, precision: str) -> Tolerance:
        """Exact where no two gradients meet in a pixel: then each is copied."""
        return Tolerance(0.0, 0.0) if self.reduction() == 1 else super().tolerance(precision)

    @classmethod
    def examples(cls) -> Sequence[MaxPool2dBackward]:
        """Windows that overlap, touch and leave gaps, images of odd, prime and unaligned size, every mode."""
        shapes = [
            {"n": 1, "c": 1, "h": 2, "w": 2},
            {"n": 2, "c": 8, "h": 8, "w": 24},
            {"n": 1, "c": 3, "h": 17, "w": 31},
            {"n": 2, "c": 4, "h": 13, "w": 18, "window": 3},
            {"n": 1, "c": 16, "h": 7, "w": 12, "window": 3, "stride": 1, "padding": 1},
            {"n": 1, "c": 5, "h": 9, "w": 16, "window": 3, "stride": 2, "padding": 1},
            {"n": 1, "c": 1, "h": 1, "w": 1, "window": 3, "stride": 1, "padding": 1},
            {"n": 1, "c": 2, "h": 23, "w": 19, "window": 5, "stride": 3, "padding": 2},
            {"n": 2, "c": 8, "h": 12, "w": 10, "window": 2, "stride": 3},
            {"n": 1, "c": 2, "h": 6, "w": 40, "window": 1, "stride": 1},
            {"n": 1, "c": 3, "h": 9, "w": 9, "window": 9, "stride": 4, "padding": 4},
            {"n": 9, "c": 37, "h": 2, "w": 3},
        ]
        modes = [
            (layout, dtype, epilogue)
            for layout in ("nchw", "nhwc")
            for dtype in ("f32", "bf16")
            for epilogue in ("none", "add", "mask")
        ]
        return [
            cls(**shape, layout=layout, dtype=dtype, epilogue=epilogue)
            for i, (layout, dtype, epilogue) in enumerate(modes)
            for j, shape in enumerate(shapes)
            if 1 <= j <= 5 or (i + j) % 2
        ]
