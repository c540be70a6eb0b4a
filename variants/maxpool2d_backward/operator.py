"""maxpool2d_backward: the gradient of maxpool2d: each output gradient goes to the pixel that was the maximum."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Pool2dGeometry, Tolerance, UsageError, from_storage, to_storage

NONE = 255
"""The position of a window without a largest element."""


@dataclass(frozen=True, kw_only=True)
class MaxPool2dBackward(Pool2dGeometry):
    """dx[n,c,y,z] = sum of dout[n,c,p,q] over the windows p, q whose largest element is x[n,c,y,z].

    The largest is searched again in x as maxpool2d finds it (v > largest): of equal ones the first, row by row; or it
    is remembered as the byte in `positions` that maxpool2d wrote, r*window + s in its window and 255 for none, and x is
    not read. Windows may overlap; pixels that are no window's largest get 0. "add" adds `skip`, a gradient that the
    image has already, as on UNet's way down; "mask" passes nothing on where x <= 0, as the ReLU whose output x is:
    where positions are remembered, where the largest, `out`, is <= 0. `layout` orders all arrays, `dtype` stores them.
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
    search: str = "again"

    special_inputs = {"x": ("level", "tiny", "far", "infinite", "masked")}
    choices = {
        "layout": ("nchw", "nhwc"),
        "dtype": ("f32", "bf16"),
        "epilogue": ("none", "add", "mask"),
        "search": ("again", "remembered"),
    }
    degree = 1  # the places of the maxima do not change with their size
    linear_in = ("dout",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes, outermost first."""
        image, pooled = ("n c h w", "n c p q") if self.layout == "nchw" else ("n h w c", "n p q c")
        more = {"skip": image} if self.epilogue == "add" else {}
        if self.search == "again":
            return {"x": image, "dout": pooled} | more
        return {"positions": pooled, "dout": pooled} | ({"out": pooled} if self.epilogue == "mask" else more)

    @property
    def outputs(self) -> Mapping[str, str]:
        """The image's axes."""
        return {"dx": "n c h w" if self.layout == "nchw" else "n h w c"}

    def tensor_dtype(self, name: str) -> str:
        """A position is a byte."""
        return "u8" if name == "positions" else self.dtype

    def validate(self) -> None:
        """Refuse windows that hold no element of the image, or more than a byte can tell apart."""
        if self.search == "remembered" and self.window > 15:
            raise UsageError(
                f"{self.name}: window={self.window} is not allowed with search=remembered, because a position is "
                "stored as a byte; use a window of at most 15",
                kind="not-allowed",
                subject="window",
                value=self.window,
                allowed="<= 15",
            )
        super().validate()

    def flops(self) -> int:
        """Return one addition per window, and one per pixel if a gradient is added."""
        return self.n * self.c * (self.p * self.q + (self.h * self.w if self.epilogue == "add" else 0))

    def comparisons(self) -> int:
        """Return the elements of all windows."""
        return self.n * self.c * self.p * self.q * self.window**2

    def reduction(self) -> int:
        """Return the number of windows that may share a pixel, plus one if a gradient is added."""
        return (-(-self.window // self.stride)) ** 2 + (self.epilogue == "add")

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but x in whole halves: windows then have equal maxima, of which the first counts.

        Positions are any that lie in the image; a few windows have none.
        """
        arrays = super().make_inputs(seed, integers)
        if self.search == "remembered":
            return {**arrays, "positions": self._positions(seed)}
        arrays["x"] = to_storage(np.rint(2 * from_storage(arrays["x"], self.dtype)) / 2, self.dtype)
        return arrays

    def _positions(self, seed: int) -> np.ndarray:
        """Of each window any element that lies in the image, of one in 16 none."""
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/positions".encode())])
        shape = next(tensor.shape for tensor in self.input_tensors() if tensor.name == "positions")
        places = []
        for axis, size, count in (("p", self.h, self.p), ("q", self.w, self.q)):
            sides = [-1 if name == axis else 1 for name in self.inputs["positions"].split()]
            begin = np.arange(count).reshape(sides) * self.stride - self.padding
            first, end = np.maximum(-begin, 0), np.minimum(size - begin, self.window)
            drawn = rng.integers(0, 256, shape, np.uint8)
            places.append((first + drawn.astype(np.int32) * (end - first) // 256).astype(np.uint8))
        found = places[0] * self.window + places[1]
        found[rng.integers(0, 16, shape, np.uint8) == 0] = NONE
        return found.astype(np.uint8)

    def reference(self, dout: np.ndarray, **given: np.ndarray) -> np.ndarray:
        """Find each window's first maximum, then add up one strided slice per position in the window."""
        given, dout = {name: self.channels_first(array) for name, array in given.items()}, self.channels_first(dout)
        parts = [(..., *self.pixels_under(r, s)) for r, s in np.ndindex(self.window, self.window)]
        if self.search == "remembered":
            place = given["positions"]
        else:
            image = self.pad(given["x"], -np.inf)
            largest, place = np.zeros_like(dout) - np.inf, np.zeros_like(dout) - 1
            for number, part in enumerate(parts):
                above = image[part] > largest
                largest, place = np.where(above, image[part], largest), np.where(above, number, place)
        if self.epilogue == "mask" and self.search == "remembered":
            dout = np.where(given["out"] > 0, dout, 0.0)
        padded = self.pad(np.zeros((self.n, self.c, self.h, self.w), like=dout))
        for number, part in enumerate(parts):
            padded[part] += np.where(place == number, dout, 0.0)
        dx = self.crop(padded)
        if self.epilogue == "mask" and self.search == "again":
            dx = np.where(given["x"] > 0, dx, 0.0)
        dx = dx + given["skip"] if self.epilogue == "add" else dx
        return self.in_layout(dx)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The gradients' absolute values added up, at the places that the image itself decides."""
        wide = self.widened(inputs)
        return {"dx": self.reference(**{k: np.abs(a) if k in ("dout", "skip") else a for k, a in wide.items()})}

    def tolerance(self, precision: str) -> Tolerance:
        """Exact where no two gradients meet in a pixel: then each is copied."""
        return Tolerance(0.0, 0.0) if self.reduction() == 1 else super().tolerance(precision)

    @classmethod
    def examples(cls) -> Sequence[MaxPool2dBackward]:
        """Windows that overlap, touch and leave gaps, images of odd, prime and unaligned size, every mode."""
        shapes = [
            {"n": 1, "c": 1, "h": 2, "w": 2},
            {"n": 2, "c": 8, "h": 8, "w": 24},
            {"n": 1, "c": 3, "h": 33, "w": 35},
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
            {"layout": layout, "dtype": dtype, "epilogue": epilogue, "search": search}
            for search in ("again", "remembered")
            for layout in ("nchw", "nhwc")
            for dtype in ("f32", "bf16")
            for epilogue in ("none", "add", "mask")
        ]
        return [
            cls(**shape, **mode)
            for i, mode in enumerate(modes)
            for j, shape in enumerate(shapes)
            if 1 <= j <= 5 or (i + j) % 2
        ]
