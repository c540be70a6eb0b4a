"""groupnorm: normalise groups of channels of each image by their mean and variance, then scale and shift channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Gradient, GroupNormGeometry, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class GroupNorm(GroupNormGeometry):
    """out = f((x - mean) * rstd * weight + bias), with rstd = 1 / sqrt(variance + 1e-5).

    Mean and variance, the biased one, are of the channels / groups channels of one group and all their pixels, in one
    image. With as many groups as channels this is instance normalisation. f is the identity or, with activation="silu",
    f(y) = y / (1 + exp(-y)). `layout` orders x and out, `dtype` stores them; all else is float32.
    """

    batch: int
    channels: int
    pixels: int
    groups: int
    layout: str = "nchw"
    dtype: str = "f32"
    activation: str = "none"

    epsilon: ClassVar[float] = 1e-5
    offset: ClassVar[float] = 100.0
    """The mean of every second group's inputs, whose deviation is 1: E[x²] - E[x]² would lose it."""
    special_inputs = {"x": ("zeros", "level", "far", "nan")}
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "activation": ("none", "silu")}
    library = "torch"
    integers_exact = False  # square roots are not whole

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the image in its physical order, and two numbers per channel."""
        return {"x": self.image_axes(), "weight": "channels", "bias": "channels"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the image, and the two numbers per group that a gradient needs."""
        return {"out": self.inputs["x"], "mean": "batch groups", "rstd": "batch groups"}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes in a plane (nchw) or a group's pixel (nhwc)."""
        return vector_width(self.dtype, self.pixels if self.layout == "nchw" else self.width)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the image."""
        return self.dtype if name in ("x", "out") else "f32"

    def flops(self) -> int:
        """Return seven FLOPs per element: four for both sums, three to normalise; and four more with SiLU."""
        return (7 + 4 * (self.activation == "silu")) * self.batch * self.channels * self.pixels

    def reduction(self) -> int:
        """Return the elements of a group, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.width * self.pixels, 65536)

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Return all at once: dx needs sums over the pixels that dweight and dbias are made of."""
        if not wanted:
            return []
        names = ("x", "weight", "mean", "rstd", *(("bias",) if self.activation == "silu" else ()))
        tensors = {name: name for name in names} | {"dout": "d.out"}
        given = {"dx": "d.x", "dweight": "d.weight", "dbias": "d.bias"}
        return [Gradient("groupnorm_backward", self.axes, tensors, given)]

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; every second group has a mean of `offset`."""
        arrays = super().make_inputs(seed, integers)
        x = self.in_groups(from_storage(arrays["x"], self.dtype)).copy()
        x[:, 1::2] += self.offset
        arrays["x"] = to_storage(self.in_layout(x), self.dtype)
        return arrays

    def reference(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Arrays:
        """Compute the mean, then the mean square of the differences from it."""
        grouped = self.in_groups(x)
        mean = grouped.mean(axis=(2, 3))
        centred = grouped - mean[:, :, None, None]
        rstd = 1.0 / np.sqrt((centred * centred).mean(axis=(2, 3)) + self.epsilon)
        factor, shift = self.per_channel(weight), self.per_channel(bias)
        out = centred * rstd[:, :, None, None] * factor + shift
        if self.activation == "silu":
            out = out / (1.0 + np.exp(-out))
        return {"out": self.in_layout(out), "mean": mean, "rstd": rstd}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms, a difference's too; SiLU's slope is at most 1.1.

        Of the variance it is what rounding each x once changes: the root of the sum of squares of 2 (x - mean) x,
        divided by their number. Where all x are the same, the square of the mean's error is all there is.
        """
        wide = self.widened(inputs)
        exact = self.reference(**wide)
        x, mean = self.in_groups(wide["x"]), exact["mean"][:, :, None, None]
        terms, centred, inside = np.abs(x), x - mean, (2, 3)
        size, variance = terms.mean(axis=inside), (centred * centred).mean(axis=inside)
        moved = variance + 2 * np.sqrt(((centred * terms) ** 2).sum(axis=inside)) / (self.width * self.pixels)
        moved += self.tolerance("f32").elementwise * size * size
        relative = 1 + 0.5 * moved / (variance + self.epsilon)
        factor, shift = (self.per_channel(np.abs(wide[name])) for name in ("weight", "bias"))
        spread = terms + size[:, :, None, None] + np.abs(centred) * relative[:, :, None, None]
        out = spread * exact["rstd"][:, :, None, None] * factor + shift
        out *= 1.1 if self.activation == "silu" else 1.0
        return {"out": self.in_layout(out), "mean": size, "rstd": exact["rstd"] * relative}

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule; the norm allows what a mean of `offset` deviations costs, small groups have no norm.

        The deviation of a few elements may be arbitrarily smaller than their mean; each element is still judged by the
        sizes of its own terms.
        """
        base = super().tolerance(precision)
        return Tolerance(base.elementwise, base.norm * self.offset if self.width * self.pixels > 12 else 1.0)

    @classmethod
    def examples(cls) -> Sequence[GroupNorm]:
        """Every mode; one group, groups of one channel, vectors that divide planes or groups and that do not."""
        shapes = [
            (1, 1, 1, 1),
            (2, 6, 5, 3),
            (1, 32, 64, 4),
            (2, 16, 128, 2),
            (3, 8, 9, 8),
            (1, 12, 77, 1),
            (1, 24, 35, 3),
            (3, 24, 16, 12),
        ]
        modes = [(layout, dtype) for layout in cls.choices["layout"] for dtype in cls.choices["dtype"]]
        return [
            cls(
                batch=batch,
                channels=channels,
                pixels=pixels,
                groups=groups,
                layout=layout,
                dtype=dtype,
                activation="silu" if (i + j) % 2 else "none",
            )
            for i, (layout, dtype) in enumerate(modes)
            for j, (batch, channels, pixels, groups) in enumerate([*shapes, *shapes[2:4]])
        ]
