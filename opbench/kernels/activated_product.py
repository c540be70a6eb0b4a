"""Base of a product whose epilogue adds a bias and maybe another tensor, and applies an activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, Tolerance


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    product: np.ndarray = 0.5 * x * (1.0 + np.tanh(inner))
    return product


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    share: np.ndarray = np.clip(x + 3.0, 0.0, 6.0) / 6.0
    return share


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu_tanh": _gelu_tanh,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "hardsigmoid": _hardsigmoid,
}
"""Each activation that an epilogue may end with; the empty name is for none."""
EXACT = ("", "relu")
"""Activations that turn whole numbers into whole numbers, and whose slope is known from the result."""


def activation_of(epilogue: str) -> str:
    """Return the activation of an epilogue such as "bias_add_relu" or "add_relu", here "relu"; empty for none."""
    activation = epilogue
    for prefix in ("none", "bias", "add"):
        activation = activation.removeprefix(prefix).removeprefix("_")
    return activation


class ActivatedProduct(Operator):
    """Base of a product with an epilogue, such as "bias_hardswish" or "bias_add_relu".

    An operator declares the axis epilogue. A bias makes the operator inhomogeneous: it has no `degree`.

    Absolute values make every term positive, so the base rule's scale of an element is that of its sum S before a ReLU.
    With GELU or hardswish the scale is the activation of S, and its relative error is at most 1.5 times that of S. With
    hardsigmoid the scale is S / 6 + 1 / 2, because its slope is at most 1 / 6.
    """

    epilogue: str

    @property
    def activation(self) -> str:
        """Return the activation that the epilogue ends with; empty for none."""
        return activation_of(self.epilogue)

    @property
    def has_residual(self) -> bool:
        """Return whether the epilogue adds a tensor of the output's shape."""
        return self.epilogue.startswith("bias_add")

    @property
    def degree(self) -> int | None:  # type: ignore[override]
        """Return that of a product of two inputs; None with a bias."""
        return 2 if self.epilogue == "none" else None

    @property
    def linear_in(self) -> Sequence[str]:  # type: ignore[override]
        """Return each input alone, the bias too, unless an activation follows."""
        return () if self.activation else tuple(self.inputs)

    @property
    def integers_exact(self) -> bool:  # type: ignore[override]
        """Return false for an activation whose values are not whole."""
        return self.activation in EXACT

    def activated(self, total: np.ndarray) -> np.ndarray:
        """Return the activation of the sums."""
        return ACTIVATIONS[self.activation](total)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the base rule, and for hardsigmoid the scale of its sum / 6 + 1 / 2."""
        if self.activation != "hardsigmoid":
            return super().magnitude_outputs(inputs)
        sums = replace(self, epilogue="bias").magnitude_outputs(inputs)  # type: ignore[call-arg]
        return {name: scale / 6.0 + 0.5 for name, scale in sums.items()}

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule; few values of a smooth activation have no norm: those below 0 are far smaller.

        With more of them, those above 0 decide the norm; the slope may double the relative error.
        """
        base = super().tolerance(precision)
        if self.activation in EXACT:
            return base
        (out,) = self.output_tensors()
        return Tolerance(base.elementwise, 2 * base.norm if out.elements > 12 else 1.0)
