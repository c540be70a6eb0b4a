"""batchnorm2d: scale and shift each channel by its running statistics, as at inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class BatchNorm2d(Operator):
    """out = (x - mean) / sqrt(variance + 1e-5) * scale + shift, per channel; "relu" puts max(., 0) behind it.

    `layout` orders x and out, `dtype` stores all tensors, the statistics too.
    """

    n: int
    c: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"
    epilogue: str = "none"

    epsilon: ClassVar[float] = 1e-5
    special_inputs = {"x": ("zeros", "level", "far")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "epilogue": ("none", "relu")}
    integers_exact = False  # square roots are not whole
    library = "torch"

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a plane (nchw) or a pixel (nhwc)."""
        return vector_width(self.dtype, self.h * self.w if self.layout == "nchw" else self.c)

    @property
    def inputs(self) -> Mapping[str, str]:
        """The image in its physical order, and four numbers per channel."""
        image = "n c h w" if self.layout == "nchw" else "n h w c"
        return {"x": image, "scale": "c", "shift": "c", "mean": "c", "variance": "c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """The image's axes."""
        return {"out": self.inputs["x"]}

    def flops(self) -> int:
        """Return two FLOPs per element, a multiplication and an addition; work per channel is not counted."""
        return 2 * self.n * self.c * self.h * self.w

    def reduction(self) -> int:
        """Return 2 terms: the scaled element and the shift."""
        return 2

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but for a variance of 1/2 and more."""
        arrays = super().make_inputs(seed, integers)
        variance = np.abs(from_storage(arrays["variance"], self.dtype).astype(np.float32)) + np.float32(0.5)
        arrays["variance"] = to_storage(variance, self.dtype)
        return arrays

    def reference(
        self, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        """The formula, with the channels moved to where they broadcast."""
        shape = (-1, 1, 1) if self.layout == "nchw" else (-1,)
        out = x - mean.reshape(shape)
        out *= (scale / np.sqrt(variance + self.epsilon)).reshape(shape)
        out += shift.reshape(shape)
        return np.maximum(out, 0.0) if self.epilogue == "relu" else out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The terms' absolute values added up, where the reference subtracts the mean."""
        wide = self.widened(inputs)
        absolute = {name: np.abs(array) for name, array in wide.items()}
        return {"out": self.reference(**{**absolute, "mean": -absolute["mean"]})}

    @classmethod
    def examples(cls) -> Sequence[BatchNorm2d]:
        """Every mode; planes and channels that vectors divide and that none does, and planes of several blocks."""
        shapes = [
            (1, 1, 1, 1),
            (2, 3, 8, 12),
            (1, 16, 7, 5),
            (3, 8, 13, 2),
            (1, 64, 4, 4),
            (2, 37, 3, 11),
            (2, 4, 48, 64),
        ]
        return [
            cls(n=n, c=c, h=h, w=w, layout=layout, dtype=dtype, epilogue="relu" if (i + j) % 2 else "none")
            for i, (layout, dtype) in enumerate((a, b) for a in ("nchw", "nhwc") for b in ("f32", "bf16"))
            for j, (n, c, h, w) in enumerate(shapes)
        ]
