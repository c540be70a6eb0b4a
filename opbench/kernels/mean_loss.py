"""Base class of losses that are means, and of their gradients, for one or several micro-batches."""

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
        """Return the number of elements of the mean: n per batch, unless the operator overrides this."""
        return self.n * self.micro

    def validate(self) -> None:
        """Raise UsageError if the mean has no batch."""
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
        """Return 1, because losses are added in two stages, so that the error is a few roundings of their sum."""
        return 1

    def share_of_f32(self) -> float:
        """Return the factor that reduces the tolerance of gradients in `dtype` to that of a loss in f32."""
        return float(8 * UNIT_ROUNDOFF["f32"] * self.reduction() ** 0.5 / self.tolerance("f32").elementwise)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the absolute results, because a difference of two inputs is rounded only once."""
        sizes = {name: np.abs(array) for name, array in self.reference_outputs(inputs).items()}
        return {**sizes, "loss": sizes["loss"] * self.share_of_f32()}
