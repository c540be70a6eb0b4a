"""avgpool3d: the mean of each window of a volume, image or line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Pool3dGeometry


@dataclass(frozen=True, kw_only=True)
class AvgPool3d(Pool3dGeometry):
    """out[n,c,z,p,q] = sum of x[n, c, z*stride - padding + a, ...] over a, r, s < window, divided.

    Positions outside the volume count as 0. The divisor is the `window`'s size, or how many of its positions lie
    `inside` the volume.
    An axis of the volume whose size is 1 has no windows along it: with d=1 the volumes are images, with d=1 and h=1
    they are lines. `dtype` stores both arrays.
    """

    n: int
    c: int
    d: int
    h: int
    w: int
    window: int = 2
    stride: int = 2
    padding: int = 0
    divisor: str = "window"
    dtype: str = "f32"

    special_inputs = {"x": ("far", "infinite", "masked", "nan")}
    choices = {"divisor": ("window", "inside"), "dtype": ("f32", "bf16")}
    degree = 1
    linear_in = ("x",)
    inputs = {"x": "n c d h w"}
    outputs = {"out": "n c z p q"}
    library = "torch"

    @property
    def integers_exact(self) -> bool:
        """Whether every divisor is a power of two."""
        return self.window & (self.window - 1) == 0 and (self.divisor == "window" or self.padding == 0)

    def flops(self) -> int:
        """Return the additions of each window and one division per output."""
        return self.n * self.c * self.z * self.p * self.q * self.reduction()

    def reduction(self) -> int:
        """Return the number of positions of a window."""
        return self.window_d * self.window_h * self.window_w

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The sum of one shifted, strided slice of the padded volume per position in the window, divided."""
        volume = self.pad(x)
        out = np.zeros((self.n, self.c, self.z, self.p, self.q), like=x)
        for element in np.ndindex(self.window_d, self.window_h, self.window_w):
            out += volume[..., *self.voxels_under(element)]
        along_d = self._positions(self.d, self.z, self.window_d, self.padding_d, x)
        along_h = self._positions(self.h, self.p, self.window_h, self.padding_h, x)
        along_w = self._positions(self.w, self.q, self.window_w, self.padding_w, x)
        out /= along_d[:, None, None] * along_h[:, None] * along_w
        return out

    def _positions(self, size: int, outputs: int, window: int, padding: int, like: np.ndarray) -> np.ndarray:
        """For each output along one axis, the positions that count."""
        if self.divisor == "window":
            return np.zeros(outputs, like=like) + window
        first = np.arange(outputs, like=like) * self.stride - padding
        return np.minimum(first + window, size) - np.maximum(first, 0)

    @classmethod
    def examples(cls) -> Sequence[AvgPool3d]:
        """Volumes, images and lines with odd, prime, whole and unaligned sizes; windows that overlap, both divisors."""
        plain = [
            cls(n=1, c=1, d=2, h=2, w=2),
            cls(n=2, c=3, d=4, h=8, w=16),
            cls(n=1, c=2, d=5, h=7, w=11),
            cls(n=1, c=3, d=8, h=6, w=20, window=3, stride=2, padding=1),
            cls(n=1, c=3, d=8, h=6, w=20, window=3, stride=2, padding=1, divisor="inside"),
            cls(n=2, c=1, d=9, h=10, w=16, window=3, stride=1, padding=1, divisor="inside"),
            cls(n=2, c=2, d=1, h=13, w=26, window=3, stride=2, padding=1, divisor="inside"),
            cls(n=3, c=5, d=1, h=1, w=96, window=8, stride=1, padding=4),
            cls(n=2, c=4, d=1, h=1, w=601, window=4, stride=3, padding=2, divisor="inside"),
            cls(n=1, c=2, d=7, h=12, w=40, window=2, stride=3),
            cls(n=1, c=1, d=1, h=1, w=1, window=3, stride=1, padding=1),
            cls(n=1, c=1, d=6, h=5, w=9, window=1, stride=1),
            cls(n=33, c=67, d=2, h=2, w=3),
        ]
        return [*plain, *(replace(problem, dtype="bf16") for problem in plain[1:10])]
