"""Base of losses that are means, with their gradients: micro-batches, and the tolerance of a loss stored in f32."""

from __future__ import annotations

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays
from opbench.source.precision import UNIT_ROUNDOFF


class MeanLoss(Operator):
    """Base of a loss that is a mean, and of its gradient.

    An operator declares the axis micro (the number of batches whose losses and gradients are added up in one step) and
    the mode dtype itself; the base declares none. Its output "loss" is f32 for every dtype, in which all other tensors
    are stored.
    """

    n: int
    micro: int
    dtype: str

    @property
    def count(self) -> int:
        """Return the number of elements that the mean is over: n per batch, unless an operator defines another."""
        return self.n * self.micro

    def validate(self) -> None:
        """Refuse a mean over no batch."""
        if self.micro < 1:
            raise UsageError(
                f"{self.name}{self}: micro={self.micro} is not allowed; choose at least 1",
                kind="not-allowed",
                subject="micro",
                value=self.micro,
                allowed=">= 1",
            )

    def tensor_dtype(self, name: str) -> str:
        """Return f32 for the loss, else `dtype`."""
        return "f32" if name == "loss" else self.dtype

    def reduction(self) -> int:
        """Return 1: losses are added up in two stages, whose error is a few roundings of their sum (as in `sum`)."""
        return 1

    def share_of_f32(self) -> float:
        """Return the part of the tolerance of stored gradients that a loss in f32 has."""
        return float(8 * UNIT_ROUNDOFF["f32"] * self.reduction() ** 0.5 / self.tolerance("f32").elementwise)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the results' own sizes: a difference of two inputs is rounded once, however much of it cancels."""
        sizes = {name: np.abs(array) for name, array in self.reference_outputs(inputs).items()}
        return {**sizes, "loss": sizes["loss"] * self.share_of_f32()}
