"""batchnorm2d_train: normalise each channel by the statistics of the batch, and update the running statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import (
    Arrays,
    Gradient,
    Operator,
    Tolerance,
    UsageError,
    from_storage,
    passed_on,
    to_storage,
    vector_width,
)


@dataclass(frozen=True, kw_only=True)
class BatchNorm2dTrain(Operator):
    """out = (x - mean) * rstd * scale + shift, with mean and rstd = 1 / sqrt(variance + 1e-5) of each channel of x.

    The variance is the biased one; the running variance follows the unbiased: new = (1 - a) old + a batch, where a is
    `momentum_percent` / 100. "relu" puts max(., 0) behind it; "add" and "add_relu" first add `residual`.
    `layout` orders x, residual and out, `dtype` stores them; all that is per channel is float32.
    """

    n: int
    c: int
    h: int
    w: int
    momentum_percent: int = 10
    layout: str = "nchw"
    dtype: str = "f32"
    epilogue: str = "none"

    epsilon: ClassVar[float] = 1e-5
    offset: ClassVar[float] = 100.0
    """The mean of every second channel's inputs, whose deviation is 1: E[x²] - E[x]² would not survive it."""
    special_inputs = {"x": ("zeros", "level", "far")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "epilogue": ("none", "relu", "add", "add_relu")}
    library = "torch"
    integers_exact = False  # square roots are not whole
    in_place = {"new_running_mean": "running_mean", "new_running_variance": "running_variance"}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a plane (nchw) or a pixel (nhwc)."""
        return vector_width(self.dtype, self.h * self.w if self.layout == "nchw" else self.c)

    @property
    def has_residual(self) -> bool:
        """Return whether the epilogue adds an image."""
        return self.epilogue in ("add", "add_relu")

    @property
    def has_relu(self) -> bool:
        """Return whether the epilogue ends with a ReLU."""
        return self.epilogue in ("relu", "add_relu")

    @property
    def inputs(self) -> Mapping[str, str]:
        """The image in its physical order, four numbers per channel, and the residual if there is one."""
        image = "n c h w" if self.layout == "nchw" else "n h w c"
        channels = {"scale": "c", "shift": "c", "running_mean": "c", "running_variance": "c"}
        return {"x": image, **channels, **({"residual": image} if self.has_residual else {})}

    @property
    def outputs(self) -> Mapping[str, str]:
        """The image's axes, and four numbers per channel: the first two are what the gradient needs."""
        return {"out": self.inputs["x"], "mean": "c", "rstd": "c", "new_running_mean": "c", "new_running_variance": "c"}

    def tensor_dtype(self, name: str) -> str:
        """What is per channel stays float32."""
        return self.dtype if name in ("x", "residual", "out") else "f32"

    def validate(self) -> None:
        """Refuse a momentum beyond 1."""
        if self.momentum_percent > 100:
            raise UsageError(
                f"{self.name}: momentum_percent={self.momentum_percent} is not allowed; use momentum_percent=0 to "
                "momentum_percent=100",
                kind="not-allowed",
                subject="momentum_percent",
                value=self.momentum_percent,
                allowed="<= 100",
            )

    @property
    def _shape(self) -> tuple[int, ...]:
        """A channel's numbers where they broadcast."""
        return (-1, 1, 1) if self.layout == "nchw" else (-1,)

    @property
    def _pixels(self) -> tuple[int, ...]:
        """The axes that statistics are over."""
        return (0, 2, 3) if self.layout == "nchw" else (0, 1, 2)

    def flops(self) -> int:
        """Return seven FLOPs per element: sum, difference, square and its sum, and three to normalise; one to add."""
        return (7 + self.has_residual) * self.n * self.c * self.h * self.w

    def reduction(self) -> int:
        """Return the elements of a channel, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.n * self.h * self.w, 65536)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """As every operator's, but for the mean of every second channel and a running variance of 1/2 and more."""
        arrays = super().make_inputs(seed, integers)
        offset = (self.offset * (np.arange(self.c, dtype=np.float32) % 2)).reshape(self._shape)
        arrays["x"] = to_storage(from_storage(arrays["x"], self.dtype) + offset, self.dtype)
        arrays["running_variance"] = np.abs(arrays["running_variance"]) + np.float32(0.5)
        return arrays

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """All three at once: the image's needs the sums that the other two are. The mask of a sum's ReLU goes first."""
        entries, dout = [], "d.out"
        axes = {key: value for key, value in self.axes.items() if key != "momentum_percent"}
        if self.has_residual:
            axes["epilogue"] = "none"  # the gradient's own mask derives from x alone
        if self.epilogue == "add_relu" and wanted & {"x", "scale", "shift", "residual"}:
            dout = "out.masked"
            mask_axes = {"n": self.n * self.c * self.h * self.w, "dtype": self.dtype}
            entries.append(Gradient("relu_backward", mask_axes, {"out": "out", "dout": "d.out"}, {"dx": dout}))
        if "residual" in wanted:
            entries += passed_on(dout, "d.residual")
        if wanted & {"x", "scale", "shift"}:
            kept = {name: name for name in ("x", "scale", "shift", "mean", "rstd")}
            given = {"dx": "d.x", "dscale": "d.scale", "dshift": "d.shift"}
            entries.append(Gradient("batchnorm2d_backward", axes, {**kept, "dout": dout}, given))
        return entries

    def reference(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
        running_mean: np.ndarray,
        running_variance: np.ndarray,
        residual: np.ndarray | None = None,
    ) -> Arrays:
        """In two passes: the mean, then the mean square of what is left."""
        mean = x.mean(self._pixels)
        out = x - mean.reshape(self._shape)
        variance = (out * out).mean(self._pixels)
        rstd = 1.0 / np.sqrt(variance + self.epsilon)
        out *= (rstd * scale).reshape(self._shape)
        out += shift.reshape(self._shape)
        if residual is not None:
            out += residual
        pixels, momentum = self.n * self.h * self.w, self.momentum_percent / 100
        return {
            "out": np.maximum(out, 0.0) if self.has_relu else out,
            "mean": mean,
            "rstd": rstd,
            "new_running_mean": (1 - momentum) * running_mean + momentum * mean,
            "new_running_variance": (1 - momentum) * running_variance
            + momentum * variance * (pixels / max(1, pixels - 1)),
        }

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Terms' absolute values added up, a difference's too; of the variance what rounding each x once does to it.

        That is the root of the sum of squares of 2 (x - mean) x / M, beside the variance itself: Welford's sums err by
        a tenth of the allowance, E[x²] - E[x]² by six times it and more where the mean is 100 deviations. Where all x
        are the same, the square of what the mean may err by is all there is.
        """
        wide = self.widened(inputs)
        x, pixels, momentum = wide["x"], self.n * self.h * self.w, self.momentum_percent / 100
        exact = self.reference(**wide)
        size = np.abs(x).mean(self._pixels)
        centred = x - exact["mean"].reshape(self._shape)
        variance = (centred * centred).mean(self._pixels)
        moved = variance + 2 * np.sqrt(((centred * x) ** 2).sum(self._pixels)) / pixels
        moved += self.tolerance("f32").elementwise * size * size
        relative = 1 + 0.5 * moved / (variance + self.epsilon)
        factor = np.abs(exact["rstd"] * wide["scale"])
        out = (np.abs(x) + size.reshape(self._shape)) * factor.reshape(self._shape)
        out += np.abs(centred) * (factor * relative).reshape(self._shape)
        out += np.abs(wide["shift"]).reshape(self._shape)
        if self.has_residual:
            out += np.abs(wide["residual"])
        return {
            "out": out,
            "mean": size,
            "rstd": exact["rstd"] * relative,
            "new_running_mean": (1 - momentum) * np.abs(wide["running_mean"]) + momentum * size,
            "new_running_variance": (1 - momentum) * wide["running_variance"]
            + momentum * moved * (pixels / max(1, pixels - 1)),
        }

    def tolerance(self, precision: str) -> Tolerance:
        """The base rule; by the norm what a mean of `offset` deviations costs, and nothing said of a dozen pixels.

        The deviation of a few pixels may be arbitrarily smaller than their mean; each element is still judged by the
        sizes of its own terms.
        """
        base = super().tolerance(precision)
        return Tolerance(base.elementwise, base.norm * self.offset if self.n * self.h * self.w > 12 else 1.0)

    @classmethod
    def examples(cls) -> Sequence[BatchNorm2dTrain]:
        """Every mode; planes and channels that vectors divide and that none does, down to one pixel."""
        shapes = [
            {"n": 1, "c": 1, "h": 1, "w": 1},
            {"n": 2, "c": 3, "h": 32, "w": 16},
            {"n": 1, "c": 16, "h": 7, "w": 5, "momentum_percent": 100},
            {"n": 3, "c": 8, "h": 13, "w": 2, "momentum_percent": 0},
            {"n": 1, "c": 64, "h": 4, "w": 4},
            {"n": 2, "c": 37, "h": 3, "w": 11, "momentum_percent": 30},
            {"n": 2, "c": 2, "h": 36, "w": 33},
            {"n": 2, "c": 8, "h": 1, "w": 1},
        ]
        wide = {"n": 1, "c": 16, "h": 35, "w": 31}  # vectors of 16 bytes in nhwc, in planes of several blocks
        return [
            cls(**shape, layout=layout, dtype=dtype, epilogue=epilogues[(i + j) % 2])
            for epilogues, chosen in ((("none", "relu"), shapes), (("add", "add_relu"), shapes[1:7]))
            for i, (layout, dtype) in enumerate((a, b) for a in ("nchw", "nhwc") for b in ("f32", "bf16"))
            for j, shape in enumerate([*chosen, wide] if layout == "nhwc" else chosen)
        ]
