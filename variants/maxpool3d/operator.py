"""maxpool3d: the largest element of each window of a volume, image or line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Operator, Tolerance, UsageError


@dataclass(frozen=True, kw_only=True)
class MaxPool3d(Operator):
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

    special_inputs = {"x": ("ties", "level", "tiny", "far", "infinite", "masked")}
    choices = {"dtype": ("f32", "bf16")}
    degree = 1
    inputs = {"x": "n c d h w"}
    outputs = {"out": "n c z p q"}
    library = "torch"

    @property
    def window_d(self) -> int:
        """Window along the depth."""
        return 1 if self.d == 1 else self.window

    @property
    def window_h(self) -> int:
        """Window along the height."""
        return 1 if self.h == 1 else self.window

    @property
    def window_w(self) -> int:
        """Window along the width."""
        return 1 if self.w == 1 else self.window

    @property
    def padding_d(self) -> int:
        """Padding before and after the depth."""
        return 0 if self.d == 1 else self.padding

    @property
    def padding_h(self) -> int:
        """Padding before and after the height."""
        return 0 if self.h == 1 else self.padding

    @property
    def padding_w(self) -> int:
        """Padding before and after the width."""
        return 0 if self.w == 1 else self.padding

    def _outputs_along(self, size: int) -> int:
        """Return the windows along an axis; none if the padded axis is smaller than a window."""
        return 1 if size == 1 else (size + 2 * self.padding - self.dilation * (self.window - 1) - 1) // self.stride + 1

    @property
    def z(self) -> int:
        """Depth of the output."""
        return self._outputs_along(self.d)

    @property
    def p(self) -> int:
        """Height of the output."""
        return self._outputs_along(self.h)

    @property
    def q(self) -> int:
        """Width of the output."""
        return self._outputs_along(self.w)

    def validate(self) -> None:
        """Refuse windows larger than the padded volume, and padding that covers more than half a window."""
        for name, least in (("window", 1), ("stride", 1), ("dilation", 1)):
            if self.axes[name] < least:
                raise UsageError(
                    f"{self}: {name}={self.axes[name]} is not allowed; at least {least}",
                    kind="not-allowed",
                    subject=name,
                    value=self.axes[name],
                    allowed=f">= {least}",
                )
        if self.padding > self.window // 2:
            raise UsageError(
                f"{self}: padding={self.padding} is not allowed; at most window // 2 = {self.window // 2}",
                kind="not-allowed",
                subject="padding",
                value=self.padding,
                allowed=f"<= {self.window // 2}",
            )
        if min(self.z, self.p, self.q) < 1:
            raise UsageError(
                f"{self}: window={self.window} is not allowed; at most the smallest padded axis that is pooled",
                kind="not-allowed",
                subject="window",
                value=self.window,
                allowed="at most the padded axis",
            )

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The maximum over one shifted, strided slice of the padded volume per position in the window."""
        sides = [(0, 0), (0, 0), *((side, side) for side in (self.padding_d, self.padding_h, self.padding_w))]
        volume = np.pad(x, sides, constant_values=-np.inf)
        out = np.zeros((self.n, self.c, self.z, self.p, self.q), like=x) - np.inf
        depth, rows, columns = ((outputs - 1) * self.stride + 1 for outputs in (self.z, self.p, self.q))
        for position in np.ndindex(self.window_d, self.window_h, self.window_w):
            a, r, s = (index * self.dilation for index in position)
            part = volume[:, :, a : a + depth, r : r + rows, s : s + columns]
            np.maximum(out, part[:, :, :: self.stride, :: self.stride, :: self.stride], out=out)
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
