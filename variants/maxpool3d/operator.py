"""maxpool3d: the largest element of each window of a volume, image or line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Pool3dGeometry, Tolerance


@dataclass(frozen=True, kw_only=True)
class MaxPool3d(Pool3dGeometry):
    """out[n,c,z,p,q] = max of x[n, c, z*stride - padding + a*dilation, ...] over a, r, s < window.

    Positions outside the volume count as -infinity. A NaN loses every comparison (v > largest), as in the kernels.
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
    dilation: int = 1
    dtype: str = "f32"

    special_inputs = {"x": ("ties", "level", "tiny", "far", "infinite", "masked", "finite_mask")}
    choices = {"dtype": ("f32", "bf16")}
    degree = 1
    inputs = {"x": "n c d h w"}
    outputs = {"out": "n c z p q"}
    library = "torch"

    def comparisons(self) -> int:
        """Return the elements of all windows."""
        return self.n * self.c * self.z * self.p * self.q * self.window_d * self.window_h * self.window_w

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The maximum over one shifted, strided slice of the padded volume per position in the window."""
        volume = self.pad(x, -np.inf)
        out = np.zeros((self.n, self.c, self.z, self.p, self.q), like=x) - np.inf
        for element in np.ndindex(self.window_d, self.window_h, self.window_w):
            np.maximum(out, volume[..., *self.voxels_under(element)], out=out)
        return out

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: elements are chosen, never rounded."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[MaxPool3d]:
        """Volumes, images and lines with odd, prime, whole and unaligned sizes; windows that overlap, and dilation."""
        plain = [
            cls(n=1, c=1, d=2, h=2, w=2),
            cls(n=2, c=3, d=4, h=8, w=16),
            cls(n=1, c=2, d=5, h=7, w=11),
            cls(n=1, c=3, d=8, h=6, w=20, window=3, stride=2, padding=1),
            cls(n=2, c=1, d=9, h=10, w=16, window=3, stride=1, padding=1),
            cls(n=1, c=2, d=9, h=11, w=24, window=3, stride=2, padding=1, dilation=3),
            cls(n=1, c=1, d=1, h=1, w=1, window=3, stride=1, padding=1),
            cls(n=2, c=2, d=1, h=13, w=26, window=3, stride=2, padding=1),
            cls(n=3, c=5, d=1, h=1, w=96, window=8, stride=1, padding=4, dilation=3),
            cls(n=2, c=4, d=1, h=1, w=601, window=4, stride=3, padding=2),
            cls(n=1, c=2, d=7, h=12, w=40, window=2, stride=3),
            cls(n=1, c=1, d=6, h=5, w=9, window=1, stride=1),
            cls(n=33, c=67, d=2, h=2, w=3),
        ]
        return [*plain, *(replace(problem, dtype="bf16") for problem in plain[1:11])]
