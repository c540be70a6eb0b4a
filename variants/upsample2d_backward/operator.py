"""upsample2d_backward: the gradient of upsample2d: each pixel sums the gradients of its enlarged pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Upsample2dGeometry


@dataclass(frozen=True, kw_only=True)
class Upsample2dBackward(Upsample2dGeometry):
    """dx[y,z] = sum of weight(y,p) * weight(z,q) * dout[p,q], with the weights by which upsample2d made p, q of y, z.

    "nearest": 1 where p // scale is y. "bilinear": 1 - |(p + 1/2) / scale - 1/2 - y| where that is above 0, and 1
    beyond the first or last pixel. h and w are the small image's, dx's. `layout` orders both arrays, `dtype` stores
    them.
    """

    n: int
    c: int
    h: int
    w: int
    scale: int = 2
    mode: str = "nearest"
    layout: str = "nchw"
    dtype: str = "f32"

    choices = {"mode": ("nearest", "bilinear"), "layout": ("nchw", "nhwc"), "dtype": ("f32", "bf16")}
    library = "torch"
    degree = 1
    linear_in = ("dout",)

    @property
    def integers_exact(self) -> bool:
        """Weights of a power of two are exact."""
        return self.mode == "nearest" or self.scale & (self.scale - 1) == 0

    @property
    def inputs(self) -> Mapping[str, str]:
        """Physical axes of the enlarged image, outermost first."""
        return {"dout": "n c p q" if self.layout == "nchw" else "n p q c"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Physical axes of the small image, outermost first."""
        return {"dx": "n c h w" if self.layout == "nchw" else "n h w c"}

    def flops(self) -> int:
        """Return one addition per element of the large image, or its four products and four sums if bilinear."""
        return (1 if self.mode == "nearest" else 8) * self.n * self.c * self.p * self.q

    def reduction(self) -> int:
        """Return the number of large pixels whose gradients a small pixel adds up."""
        return (self.scale if self.mode == "nearest" else 2 * self.scale) ** 2

    def reference(self, dout: np.ndarray) -> np.ndarray:
        """One direction after the other, and the `scale` pixels over one of the small image one after the other."""
        for axis in (2, 3) if self.layout == "nchw" else (1, 2):
            dout = self._gathered(dout, axis)
        return dout

    def _gathered(self, dout: np.ndarray, axis: int) -> np.ndarray:
        small = list(dout.shape)
        small[axis] //= self.scale
        found = np.zeros(small, like=dout)
        to = found.swapaxes(0, axis)
        for phase in range(self.scale):
            part = dout.swapaxes(0, axis)[phase :: self.scale]
            away = (phase + 0.5) / self.scale - 0.5 if self.mode == "bilinear" else 0.0
            to += (1 - abs(away)) * part
            if away < 0:  # the neighbour before it; of the first pixel that is itself
                to[:-1] += -away * part[1:]
                to[0] += -away * part[0]
            elif away > 0:
                to[1:] += away * part[:-1]
                to[-1] += away * part[-1]
        return found

    @classmethod
    def examples(cls) -> Sequence[Upsample2dBackward]:
        """Both modes, layouts and dtypes on images of odd, prime and unaligned size, down to one pixel."""
        shapes = [
            {"n": 1, "c": 1, "h": 1, "w": 1},
            {"n": 2, "c": 3, "h": 32, "w": 36},
            {"n": 1, "c": 2, "h": 7, "w": 13},
            {"n": 1, "c": 5, "h": 5, "w": 6, "scale": 3},
            {"n": 1, "c": 8, "h": 9, "w": 4, "scale": 4},
            {"n": 3, "c": 16, "h": 5, "w": 7},
            {"n": 1, "c": 2, "h": 1, "w": 9},
            {"n": 2, "c": 4, "h": 3, "w": 2, "scale": 1},
        ]
        modes = [
            (m, layout, d) for m in ("nearest", "bilinear") for layout in ("nchw", "nhwc") for d in ("f32", "bf16")
        ]
        pairs = [(s, m) for i, m in enumerate(modes) for j, s in enumerate(shapes) if j < 2 or (i + j) % 2]
        return [cls(**shape, mode=m, layout=layout, dtype=d) for shape, (m, layout, d) in pairs]
