"""Bases of operators that enlarge images, and of their gradients: sizes, and vectors of channels."""

from __future__ import annotations

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import vector_width


class Upsample2dGeometry(Operator):
    """Base of an operator that enlarges images by a whole scale, and of its gradient.

    An operator declares the axes c, h, w and scale and the mode dtype itself; the base declares none. p x q is the size
    of the enlarged image.
    """

    c: int
    h: int
    w: int
    scale: int
    dtype: str

    @property
    def p(self) -> int:
        """Return the height of the enlarged image."""
        return self.h * self.scale

    @property
    def q(self) -> int:
        """Return the width of the enlarged image."""
        return self.w * self.scale

    @property
    def packs(self) -> int:
        """Return the vectors of up to 16 bytes that a pixel's channels divide into."""
        return self.c // vector_width(self.dtype, self.c)

    def validate(self) -> None:
        """Refuse a scale of 0."""
        if self.scale < 1:
            raise UsageError(
                f"{self.name}{self}: scale={self.scale} is not allowed; choose at least 1",
                kind="not-allowed",
                subject="scale",
                value=self.scale,
                allowed=">= 1",
            )


class UpsampleConcatGeometry(Operator):
    """Base of an operator that doubles a small image and joins a large one to it, and of its gradient.

    An operator declares the axes c1, c2, h and w and the modes layout and dtype itself; the base declares none. The
    small image has c1 channels of h x w pixels, the large one c2 of p x q.
    """

    c1: int
    c2: int
    h: int
    w: int
    layout: str
    dtype: str

    @property
    def p(self) -> int:
        """Return the height of the joined image."""
        return 2 * self.h

    @property
    def q(self) -> int:
        """Return the width of the joined image."""
        return 2 * self.w

    @property
    def c(self) -> int:
        """Return the number of channels of the joined image."""
        return self.c1 + self.c2

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes in a row (nchw) or in both channels (nhwc)."""
        sizes = (self.q,) if self.layout == "nchw" else (self.c1, self.c2)
        return vector_width(self.dtype, *sizes)
