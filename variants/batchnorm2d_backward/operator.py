"""batchnorm2d_backward: the gradient of batchnorm2d_train, including the gradient through the batch statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class BatchNorm2dBackward(Operator):
    """dx = scale * rstd * (dy - dshift / M - xhat * dscale / M), dscale = sum of dy * xhat, dshift = sum of dy.

    xhat = (x - mean) * rstd, where mean and rstd are those of x itself, and M = n * h * w: the sums are over all but
    the channels. dy is dout, with "relu" only where scale * xhat + shift > 0, so that the ReLU's output is not read.
    `layout` orders x, dout and dx, `dtype` stores them; all that is per channel is float32.
    """

    n: int
    c: int
    h: int
    w: int
    layout: str = "nchw"
    dtype: str = "f32"
    epilogue: str = "none"

    epsilon: ClassVar[float] = 1e-5
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "epilogue": ("none", "relu")}
    integers_exact = False  # deviations are not whole
    linear_in = ("dout",)

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a plane (nchw) or a pixel (nhwc)."""
        return vector_width(self.dtype, self.h * self.w if self.layout == "nchw" else self.c)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Two images in their physical order, and four numbers per channel."""
        image = "n c h w" if self.layout == "nchw" else "n h w c"
        return {"x": image, "dout": image, "scale": "c", "shift": "c", "mean": "c", "rstd": "c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """The image's axes, and two numbers per channel."""
        return {"dx": self.inputs["x"], "dscale": "c", "dshift": "c"}

    def tensor_dtype(self, name: str) -> str:
        """What is per channel stays float32."""
        return self.dtype if name in ("x", "dout", "dx") else "f32"

    @property
    def _shape(self) -> tuple[int, ...]:
        """A channel's numbers where they broadcast."""
        return (-1, 1, 1) if self.layout == "nchw" else (-1,)

    @property
    def _pixels(self) -> tuple[int, ...]:
        """The axes that sums are over."""
        return (0, 2, 3) if self.layout == "nchw" else (0, 1, 2)

    def flops(self) -> int:
        """Return 10 FLOPs per element: two to normalise, three for both sums, five for the result."""
        return 10 * self.n * self.c * self.h * self.w

    def reduction(self) -> int:
        """Return the elements of a channel, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.n * self.h * self.w, 65536)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but for statistics that are x's own, and no element that is at the ReLU's kink.

        Every second channel's mean is 100 deviations. The shift goes to the middle of the widest gap nearby between
        two elements, so that no rounding decides what passes.
        """
        arrays = super().make_inputs(seed, integers)
        offset = (100.0 * (np.arange(self.c, dtype=np.float32) % 2)).reshape(self._shape)
        arrays["x"] = to_storage(from_storage(arrays["x"], self.dtype) + offset, self.dtype)
        x = from_storage(arrays["x"], self.dtype)
        mean = x.mean(self._pixels, dtype=np.float64)
        centred = x - mean.reshape(self._shape)
        rstd = 1.0 / np.sqrt(np.square(centred, out=centred).mean(self._pixels) + self.epsilon)
        arrays["mean"], arrays["rstd"] = mean.astype(np.float32), rstd.astype(np.float32)
        if self.epilogue == "relu":
            channels = x.swapaxes(0, 1) if self.layout == "nchw" else x.reshape(-1, self.c).T
            for i, (scale, shift) in enumerate(zip(arrays["scale"], arrays["shift"], strict=True)):
                linear = (channels[i].ravel() - mean[i]) * (rstd[i] * scale)
                reach = abs(scale) * 100 / linear.size
                near = np.sort(linear[np.abs(linear + shift) < reach])
                near = np.concatenate(([-shift - reach], near, [-shift + reach]))
                widest = np.diff(near).argmax()
                arrays["shift"][i] = -(near[widest] + near[widest + 1]) / 2
        return arrays

    def reference(
        self,
        x: np.ndarray,
        dout: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
    ) -> Arrays:
        """The formulas as they stand."""
        xhat, dy = self._terms(x, dout, scale, shift, mean, rstd)
        dscale, dshift = (dy * xhat).sum(self._pixels), dy.sum(self._pixels)
        pixels = self.n * self.h * self.w
        dx = dy - (dshift / pixels).reshape(self._shape) - xhat * (dscale / pixels).reshape(self._shape)
        dx *= (scale * rstd).reshape(self._shape)
        return {"dx": dx, "dscale": dscale, "dshift": dshift}

    def _terms(
        self,
        x: np.ndarray,
        dout: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The normalised image, and the gradient behind the ReLU."""
        xhat = (x - mean.reshape(self._shape)) * rstd.reshape(self._shape)
        if self.epilogue == "none":
            return xhat, dout
        passes = xhat * scale.reshape(self._shape) + shift.reshape(self._shape) > 0
        return xhat, np.where(passes, dout, 0.0)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Terms' absolute values added up: sums of |dy| and |dy * xhat|, and three terms of each pixel."""
        wide = self.widened(inputs)
        xhat, dy = (np.abs(array) for array in self._terms(**wide))
        dscale, dshift = (dy * xhat).sum(self._pixels), dy.sum(self._pixels)
        pixels = self.n * self.h * self.w
        dx = dy + (dshift / pixels).reshape(self._shape) + xhat * (dscale / pixels).reshape(self._shape)
        dx *= np.abs(wide["scale"] * wide["rstd"]).reshape(self._shape)
        return {"dx": dx, "dscale": dscale, "dshift": dshift}

    def tolerance(self, precision: str) -> Tolerance:
        """The base rule; nothing by the norm of one or two pixels, whose dx is 0 but for the epsilon."""
        base = super().tolerance(precision)
        return base if self.n * self.h * self.w > 2 else Tolerance(base.elementwise, 1.0)

    @classmethod
    def examples(cls) -> Sequence[BatchNorm2dBackward]:
        """Every mode; planes and channels that vectors divide and that none does, down to one pixel."""
        shapes = [
            (1, 1, 1, 1),
            (2, 3, 8, 12),
            (1, 16, 7, 5),
            (3, 8, 13, 2),
            (1, 64, 4, 4),
            (2, 37, 3, 11),
            (2, 2, 36, 33),
            (2, 8, 1, 1),
        ]
        wide = (1, 16, 35, 31)  # vectors of 16 bytes in nhwc, in planes of several blocks
        return [
            cls(n=n, c=c, h=h, w=w, layout=layout, dtype=dtype, epilogue="relu" if (i + j) % 2 else "none")
            for i, (layout, dtype) in enumerate((a, b) for a in ("nchw", "nhwc") for b in ("f32", "bf16"))
            for j, (n, c, h, w) in enumerate([*shapes, wide] if layout == "nhwc" else shapes)
        ]
