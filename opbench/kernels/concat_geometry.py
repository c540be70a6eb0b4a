"""Base class of operators that concatenate two images along their channels, or split them again."""

from __future__ import annotations

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import vector_width


class ConcatGeometry(Operator):
    """Base of a concatenation of two images along their channels, and of its inverse.

    An operator declares the axes n, c1, c2, h and w and the modes layout and dtype itself; the base declares none. In
    memory the joined image has `outer` pairs of runs: of whole images (nchw) or of the channels of a pixel (nhwc).
    """

    n: int
    c1: int
    c2: int
    h: int
    w: int
    layout: str
    dtype: str

    @property
    def c(self) -> int:
        """Return the number of channels of both images together."""
        return self.c1 + self.c2

    @property
    def outer(self) -> int:
        """Return the number of pairs of memory runs in the joined image."""
        return self.n if self.layout == "nchw" else self.n * self.h * self.w

    @property
    def run1(self) -> int:
        """Return the elements of one run of the first image."""
        return self.c1 * self.h * self.w if self.layout == "nchw" else self.c1

    @property
    def run2(self) -> int:
        """Return the elements of one run of the second image."""
        return self.c2 * self.h * self.w if self.layout == "nchw" else self.c2

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides both runs."""
        return vector_width(self.dtype, self.run1, self.run2)

    def joined_axes(self) -> str:
        """Return the physical axes of the joined image, outermost first."""
        return "n c h w" if self.layout == "nchw" else "n h w c"

    def part_axes(self) -> dict[str, str]:
        """Return the physical axes of both images, "a" and "b", outermost first."""
        if self.layout == "nchw":
            return {"a": "n c1 h w", "b": "n c2 h w"}
        return {"a": "n h w c1", "b": "n h w c2"}
