"""groupnorm_backward: the gradient of groupnorm, from its input and the statistics of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, GroupNormGeometry, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class GroupNormBackward(GroupNormGeometry):
    """dx = rstd * (g - mean of g - xhat * mean of g * xhat), dweight = sum of dy * xhat, dbias = sum of dy.

    xhat = (x - mean) * rstd and g = dy * weight. Means are over the channels and pixels of a group, sums over all
    images and pixels of a channel. dy is dout or, with activation="silu", dout * f'(y) with y = xhat * weight + bias.
    `layout` orders x, dout and dx, `dtype` stores them; all else is float32.
    """

    batch: int
    channels: int
    pixels: int
    groups: int
    layout: str = "nchw"
    dtype: str = "f32"
    activation: str = "none"

    epsilon: ClassVar[float] = 1e-5
    choices = {"layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16"), "activation": ("none", "silu")}
    library = "torch"
    integers_exact = False  # deviations are not whole
    linear_in = ("dout",)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the images, two numbers per group and one or two per channel."""
        image = self.image_axes()
        numbers = {"weight": "channels", "mean": "batch groups", "rstd": "batch groups"}
        return {"x": image, "dout": image, **numbers, **({"bias": "channels"} if self.activation == "silu" else {})}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the image's gradient and two numbers per channel."""
        return {"dx": self.inputs["x"], "dweight": "channels", "dbias": "channels"}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a group's channels."""
        return vector_width(self.dtype, self.width)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for all but the images."""
        return self.dtype if name in ("x", "dout", "dx") else "f32"

    def flops(self) -> int:
        """Return 13 FLOPs per element (two to normalise, six for four sums, five for dx), and ten more with SiLU."""
        return (13 + 10 * (self.activation == "silu")) * self.batch * self.channels * self.pixels

    def reduction(self) -> int:
        """Return the elements of a sum, at most 65536: longer sums are in blocks, so errors do not grow."""
        return min(max(self.width, self.batch) * self.pixels, 65536)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals with the statistics of each group; every second group has a mean of 100 deviations."""
        arrays = super().make_inputs(seed, integers)
        x = self.in_groups(from_storage(arrays["x"], self.dtype)).copy()
        x[:, 1::2] += 100.0
        arrays["x"] = to_storage(self.in_layout(x), self.dtype)
        x = self.in_groups(from_storage(arrays["x"], self.dtype)).astype(np.float64)
        arrays["mean"] = x.mean(axis=(2, 3)).astype(np.float32)
        arrays["rstd"] = (1.0 / np.sqrt(x.var(axis=(2, 3)) + self.epsilon)).astype(np.float32)
        return arrays

    def reference(
        self,
        x: np.ndarray,
        dout: np.ndarray,
        weight: np.ndarray,
        mean: np.ndarray,
        rstd: np.ndarray,
        bias: np.ndarray | None = None,
    ) -> Arrays:
        """Compute the formulas as they stand."""
        xhat, dy = (self.in_groups(x) - mean[:, :, None, None]) * rstd[:, :, None, None], self.in_groups(dout)
        if bias is not None:
            y = xhat * self.per_channel(weight) + self.per_channel(bias)
            share = 1.0 / (1.0 + np.exp(-y))
            dy = dy * share * (1.0 + y * (1.0 - share))
        slope, inside = dy * self.per_channel(weight), (2, 3)
        inner = slope - slope.mean(axis=inside)[:, :, None, None]
        inner = inner - xhat * (slope * xhat).mean(axis=inside)[:, :, None, None]
        sums = {"dweight": dy * xhat, "dbias": dy}
        return {"dx": self.in_layout(inner * rstd[:, :, None, None])} | {
            name: terms.sum(axis=(0, 3)).reshape(-1) for name, terms in sums.items()
        }

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms; SiLU's slope is at most 1.1, and its slope's 1/2."""
        wide = self.widened(inputs)
        rstd, inside = wide["rstd"][:, :, None, None], (2, 3)
        xhat = np.abs((self.in_groups(wide["x"]) - wide["mean"][:, :, None, None]) * rstd)
        dy, weight = np.abs(self.in_groups(wide["dout"])), np.abs(self.per_channel(wide["weight"]))
        if "bias" in wide:
            dy = dy * (1.1 + 0.5 * (xhat * weight + np.abs(self.per_channel(wide["bias"]))))
        slope = dy * weight
        inner = slope + slope.mean(axis=inside)[:, :, None, None]
        inner = inner + xhat * (slope * xhat).mean(axis=inside)[:, :, None, None]
        sums = {"dweight": dy * xhat, "dbias": dy}
        return {"dx": self.in_layout(rstd * inner)} | {
            name: terms.sum(axis=(0, 3)).reshape(-1) for name, terms in sums.items()
        }

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule; small groups have no norm, as their dx is nearly 0."""
        base = super().tolerance(precision)
        return base if self.width * self.pixels > 12 else Tolerance(base.elementwise, 1.0)

    @classmethod
    def examples(cls) -> Sequence[GroupNormBackward]:
        """Every mode; one group, groups of one channel, vectors that divide a group's channels and that do not."""
        shapes = [(1, 1, 1, 1), (2, 6, 5, 3), (1, 32, 64, 4), (2, 16, 128, 2), (3, 8, 9, 8), (1, 24, 35, 3)]
        shapes.append((2, 96, 20, 32))
        modes = [(layout, dtype) for layout in cls.choices["layout"] for dtype in cls.choices["dtype"]]
        names = ("batch", "channels", "pixels", "groups")
        return [
            cls(
                **dict(zip(names, shape, strict=True)),
                layout=layout,
                dtype=dtype,
                activation="silu" if (i + j) % 2 else "none",
            )
            for i, (layout, dtype) in enumerate(modes)
            for j, shape in enumerate([*shapes, *shapes[2:5]])
        ]
