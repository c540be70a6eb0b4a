"""Bases of convolutions, pools and their gradients: sizes of outputs, checks of axes, and positions of windows.

A base declares no axis. An operator names all its axes itself, in the order in which kernels get them.
"""

from __future__ import annotations

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import vector_width


def _require_positive(problem: Operator, *axes: str) -> None:
    """Raise UsageError for an axis below 1, such as a stride of 0."""
    for axis in axes:
        if int(problem.axes[axis]) < 1:
            raise UsageError(
                f"{problem.name}: {axis}={problem.axes[axis]} is not allowed; choose at least 1",
                kind="not-allowed",
                subject=axis,
                value=problem.axes[axis],
                allowed=">= 1",
            )


def _require_half_a_window(problem: Operator, padding: int, window: int) -> None:
    """Raise UsageError for padding with which a pool's window may lie outside of its input."""
    if padding > window // 2:
        raise UsageError(
            f"{problem.name}{problem}: padding={padding} is not allowed; choose at most window // 2 = {window // 2}, "
            "so that every window contains an element of the input",
            kind="not-allowed",
            subject="padding",
            value=padding,
            allowed=f"<= {window // 2}",
        )


class _Windows2d(Operator):
    """Windows that move over images of h x w pixels, with one stride and one padding for both axes."""

    h: int
    w: int
    stride: int
    padding: int
    layout: str

    def window_shape(self) -> tuple[int, int]:
        """Return rows and columns of a window, not counting the pixels that dilation skips."""
        raise NotImplementedError  # each operator defines it: filters and windows have different axes

    def _dilation(self) -> int:
        return int(self.axes.get("dilation", 1))

    def _positions_along(self, size: int, window: int) -> int:
        return (size + 2 * self.padding - self._dilation() * (window - 1) - 1) // self.stride + 1

    @property
    def p(self) -> int:
        """Return the positions of a window along the height: the height of a forward operator's output."""
        return self._positions_along(self.h, self.window_shape()[0])

    @property
    def q(self) -> int:
        """Return the positions of a window along the width: the width of a forward operator's output."""
        return self._positions_along(self.w, self.window_shape()[1])

    def pixels_under(self, row: int, column: int) -> tuple[slice, slice]:
        """Return rows and columns of the padded image that one element of the window meets at all positions."""
        top, left = row * self._dilation(), column * self._dilation()
        return (
            slice(top, top + (self.p - 1) * self.stride + 1, self.stride),
            slice(left, left + (self.q - 1) * self.stride + 1, self.stride),
        )

    def pad(self, images: np.ndarray, value: float = 0.0) -> np.ndarray:
        """Return images, whose last two axes are height and width, with a border of `value`."""
        sides = (self.padding, self.padding)
        return np.pad(images, (*[(0, 0)] * (images.ndim - 2), sides, sides), constant_values=value)

    def crop(self, padded: np.ndarray) -> np.ndarray:
        """Return padded images without their border."""
        return padded[..., self.padding : self.padding + self.h, self.padding : self.padding + self.w]

    def channels_first(self, array: np.ndarray) -> np.ndarray:
        """Reorder images, or filters with channels, from `layout` to n c h w."""
        return array if self.layout == "nchw" else array.transpose(0, 3, 1, 2)

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        """Return images, or filters with channels, that are in the order n c h w, as `layout` stores them."""
        return array if self.layout == "nchw" else array.transpose(0, 2, 3, 1).copy()


class Conv2dGeometry(_Windows2d):
    """Base of a two-dimensional convolution and its gradients: filters of r rows and s columns.

    An operator declares the axes h, w, r, s, stride, padding and layout; dilation is 1 unless it declares that, too.
    p x q is the size of the convolution's output.
    """

    r: int
    s: int

    def window_shape(self) -> tuple[int, int]:
        """Return r and s."""
        return self.r, self.s

    def validate(self) -> None:
        """Refuse a stride or dilation of 0, an empty filter and a filter that does not fit into the padded image."""
        _require_positive(self, *(axis for axis in ("stride", "dilation", "r", "s") if axis in self.axes))
        if min(self.p, self.q) < 1:
            dilated = f" with dilation {self._dilation()}" if self._dilation() > 1 else ""
            raise UsageError(
                f"{self.name}: a filter of {self.r}x{self.s}{dilated} does not fit into an image of "
                f"{self.h}x{self.w} with padding {self.padding}, so the output would be empty; choose a smaller "
                "filter, or a larger image or padding",
                kind="filter-too-large",
                subject=self.name,
                value=(self.r, self.s),
                allowed=(self.h + 2 * self.padding, self.w + 2 * self.padding),
            )


class Pool2dGeometry(_Windows2d):
    """Base of a two-dimensional pool and its gradient: square windows.

    An operator declares the axes c, h, w, window, stride, padding, layout and dtype. p x q is the size of the pooled
    image.
    """

    c: int
    window: int
    dtype: str

    def window_shape(self) -> tuple[int, int]:
        """Return the window's size, twice."""
        return self.window, self.window

    @property
    def packs(self) -> int:
        """Return the vectors of up to 16 bytes that a pixel's channels divide into."""
        return self.c // vector_width(self.dtype, self.c)

    def validate(self) -> None:
        """Refuse windows that may hold no element of the image."""
        _require_positive(self, "window", "stride")
        _require_half_a_window(self, self.padding, self.window)
        if min(self.p, self.q) < 1:
            raise UsageError(
                f"{self.name}{self}: window={self.window} is larger than the padded image of "
                f"{self.h + 2 * self.padding}x{self.w + 2 * self.padding}; choose a smaller window or a larger image",
                kind="not-allowed",
                subject="window",
                value=self.window,
                allowed=f"<= {min(self.h, self.w) + 2 * self.padding}",
            )


class Pool3dGeometry(Operator):
    """Base of pools of volumes, images and lines: cubic windows; an axis whose size is 1 has no windows along it.

    An operator declares the axes d, h, w, window, stride and padding; dilation is 1 unless it declares that, too.
    z x p x q is the size of the pooled volume.
    """

    d: int
    h: int
    w: int
    window: int
    stride: int
    padding: int

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

    def _dilation(self) -> int:
        return int(self.axes.get("dilation", 1))

    def _positions_along(self, size: int) -> int:
        if size == 1:
            return 1
        return (size + 2 * self.padding - self._dilation() * (self.window - 1) - 1) // self.stride + 1

    @property
    def z(self) -> int:
        """Depth of the output."""
        return self._positions_along(self.d)

    @property
    def p(self) -> int:
        """Height of the output."""
        return self._positions_along(self.h)

    @property
    def q(self) -> int:
        """Width of the output."""
        return self._positions_along(self.w)

    def validate(self) -> None:
        """Refuse windows larger than the padded volume, and padding that covers more than half a window."""
        _require_positive(self, *(axis for axis in ("window", "stride", "dilation") if axis in self.axes))
        _require_half_a_window(self, self.padding, self.window)
        if min(self.z, self.p, self.q) < 1:
            raise UsageError(
                f"{self.name}{self}: window={self.window} is not allowed; choose a window of at most the smallest "
                "pooled axis with its padding",
                kind="not-allowed",
                subject="window",
                value=self.window,
                allowed="at most the padded axis",
            )

    def voxels_under(self, element: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the slices of the padded volume that one element (a, r, s) of the window meets at all positions."""
        starts = (index * self._dilation() for index in element)
        spans = ((positions - 1) * self.stride + 1 for positions in (self.z, self.p, self.q))
        return tuple(slice(start, start + end, self.stride) for start, end in zip(starts, spans, strict=True))

    def pad(self, volumes: np.ndarray, value: float = 0.0) -> np.ndarray:
        """Return volumes with axes n c d h w, with a border of `value`."""
        sides = ((side, side) for side in (self.padding_d, self.padding_h, self.padding_w))
        return np.pad(volumes, ((0, 0), (0, 0), *sides), constant_values=value)


class Conv3dGeometry(Operator):
    """Base class of convolution operators over volumes, with filters of t x r x s and with groups of channels.

    An operator declares the axes c, d, h, w, k, t, r, s and groups, stride, padding and dilation along each of d, h and
    w, and the mode layout; it defines `outputs_along`. The output has k channels of z x p x q. An image is a volume
    with d = t = 1; a line also has h = r = 1.
    """

    c: int
    d: int
    h: int
    w: int
    k: int
    t: int
    r: int
    s: int
    groups: int
    layout: str

    def outputs_along(self, axis: str, size: int, taps: int) -> int:
        """Return the outputs along axis "d", "h" or "w" of `size` voxels, for a filter of `taps` elements."""
        raise NotImplementedError  # each operator defines it: filters and windows have different axes

    @property
    def z(self) -> int:
        """Depth of the output."""
        return self.outputs_along("d", self.d, self.t)

    @property
    def p(self) -> int:
        """Height of the output."""
        return self.outputs_along("h", self.h, self.r)

    @property
    def q(self) -> int:
        """Width of the output."""
        return self.outputs_along("w", self.w, self.s)

    @property
    def group_channels(self) -> int:
        """Return the channels that an output channel sees."""
        return self.c // self.groups

    @property
    def group_filters(self) -> int:
        """Return the output channels of a group."""
        return self.k // self.groups

    def validate(self) -> None:
        """Refuse sizes below 1 and groups that do not divide the channels; an operator adds its own conditions."""
        along = (f"{parameter}_{axis}" for parameter in ("stride", "dilation") for axis in "dhw")
        _require_positive(self, "t", "r", "s", "groups", *along)
        for axis in ("c", "k"):
            if int(self.axes[axis]) % self.groups:
                raise UsageError(
                    f"{self.name}: {axis}={self.axes[axis]} is not allowed with groups={self.groups}; choose a "
                    f"multiple of {self.groups}",
                    kind="not-divisible",
                    subject=axis,
                    value=self.axes[axis],
                    allowed=self.groups,
                )

    def channels_first(self, array: np.ndarray) -> np.ndarray:
        """Return volumes or filters that are stored in `layout`, with the channels before depth, height and width."""
        return array if self.layout == "nchw" else array.transpose(0, 4, 1, 2, 3)

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        """Return volumes with axes n k z p q as `layout` stores them."""
        return array if self.layout == "nchw" else array.transpose(0, 2, 3, 4, 1).copy()
