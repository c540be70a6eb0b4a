"""Base of group normalisation and its gradient: groups of channels, and the order of images in memory."""

from __future__ import annotations

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.operator import Operator


class GroupNormGeometry(Operator):
    """Base of a normalisation of groups of channels and of its gradient.

    An operator declares the axes batch, channels, pixels, groups and layout itself; the base declares none.
    """

    batch: int
    channels: int
    pixels: int
    groups: int
    layout: str

    @property
    def width(self) -> int:
        """Return the number of channels of a group."""
        return self.channels // self.groups

    def image_axes(self) -> str:
        """Return the physical axes of an image, outermost first."""
        return "batch channels pixels" if self.layout == "nchw" else "batch pixels channels"

    def validate(self) -> None:
        """Raise UsageError if the groups do not divide the channels."""
        if self.groups < 1 or self.channels % self.groups:
            raise UsageError(
                f"{self.name}{self}: groups={self.groups} is not allowed; choose a divisor of channels={self.channels}",
                kind="not-divisible",
                subject="groups",
                value=self.groups,
                allowed=f"divisors of {self.channels}",
            )

    def in_groups(self, image: np.ndarray) -> np.ndarray:
        """Return an image with axes batch, groups, channels of a group, pixels."""
        image = image if self.layout == "nchw" else image.swapaxes(1, 2)
        return image.reshape(self.batch, self.groups, self.width, self.pixels)

    def per_channel(self, array: np.ndarray) -> np.ndarray:
        """Return an array of one number per channel with axes groups, channels of a group, 1."""
        return array.reshape(self.groups, self.width, 1)

    def in_layout(self, grouped: np.ndarray) -> np.ndarray:
        """Return values with the axes of `in_groups` as an image that `layout` orders."""
        image = grouped.reshape(self.batch, self.channels, self.pixels)
        return image if self.layout == "nchw" else image.swapaxes(1, 2).copy()
