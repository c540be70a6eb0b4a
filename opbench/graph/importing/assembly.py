"""Add operators with the arguments that PyTorch and ONNX give them; both importers use this module.

A setting that opbench does not support raises UsageError with the name of the node.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opbench.errors import UsageError
from opbench.graph.build import Builder
from opbench.graph.passes import EPSILON
from opbench.graph.values import Value

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""The constants of selu, which frameworks pass as parameters of elu."""


@dataclass(frozen=True)
class Constant:
    """A weight under its name in the framework, or an array computed from weights."""

    name: str
    array: np.ndarray

    def transposed(self) -> Constant:
        """Return the constant with two axes swapped; a second swap restores its name."""
        name = self.name.removesuffix(".transposed") if self.name.endswith(".transposed") else f"{self.name}.transposed"
        return Constant(name, self.array.T)


Operand = Value | Constant


@dataclass
class Assembly:
    """A graph builder that accepts constants as weights; `node_name` is the name of the current node for errors."""

    net: Builder
    node_name: str = ""
    _weights: dict[str, Value] = field(default_factory=dict)

    def unsupported(self, problem: str, kind: str, value: object = None, allowed: object = None) -> UsageError:
        """Return the UsageError for a setting that opbench does not support; its message names the current node."""
        message = f"{self.net.name}: node {self.node_name}: {problem}"
        return UsageError(message, kind=kind, subject=self.node_name, value=value, allowed=allowed)

    def require_known(self, operator: str, known: Collection[str]) -> None:
        """Raise UsageError for an operator that opbench cannot import."""
        if operator not in known:
            names = tuple(sorted(known))
            raise self.unsupported(
                f"unknown operator '{operator}'; replace the operator in the model by supported ones: "
                f"{', '.join(names)}",
                "unknown-operator",
                operator,
                names,
            )

    def value(self, x: Operand) -> Value:
        """Return an operand as a value of the network; a constant becomes a weight at its first use."""
        if isinstance(x, Constant):
            if x.name not in self._weights:
                self._weights[x.name] = self.net.constant(x.name, np.asarray(x.array))
            return self._weights[x.name]
        return x

    def constant(self, x: object, role: str) -> Constant:
        """Return an operand that must be a constant; raise UsageError for a computed one."""
        if not isinstance(x, Constant):
            raise self.unsupported(
                f"the {role} is computed by a node; export the model with a constant {role}", "computed", role
            )
        return x

    def equal_number(self, numbers: Any, setting: str) -> int:
        """Return the number that is given for all directions; raise UsageError if the numbers differ."""
        values = list(numbers) if isinstance(numbers, Sequence | np.ndarray) else [numbers]
        if len(set(values)) != 1:
            raise self.unsupported(
                f"{setting}={values} is not supported; use one number for all sides",
                "unsupported-option",
                (setting, values),
            )
        return int(values[0])

    def require_setting(self, setting: str, value: object, allowed: object) -> None:
        """Raise UsageError if a setting differs from the only value that opbench's operator supports."""
        values = set(value) if isinstance(value, Sequence) and not isinstance(value, str) else {value}
        if values != {allowed}:
            raise self.unsupported(
                f"{setting}={value} is not supported; export the model with {setting}={allowed}",
                "unsupported-option",
                (setting, value),
                allowed,
            )

    def require_number(self, setting: str, value: float, allowed: float) -> None:
        """Raise UsageError if a number differs from the one that opbench's operator uses, up to float32 rounding."""
        if not math.isclose(value, allowed, rel_tol=1e-6):
            raise self.unsupported(
                f"{setting}={value:g} is not supported; export the model with {setting}={allowed:g}",
                "unsupported-option",
                (setting, value),
                allowed,
            )

    # Operators ----------------------------------------------------------------------------------------------------

    def conv2d(
        self, name: str, x: Operand, weight: Constant, bias: Constant | None, stride: object, padding: object
    ) -> Value:
        """Add a convolution without dilation and groups."""
        image = self.value(x)
        n, c, h, w = self.image(image)
        if weight.array.ndim != 4 or weight.array.shape[1] != c:
            raise self.unsupported(
                f"a filter of shape {weight.array.shape} does not fit an image of shape {image.shape}; the filter "
                f"needs four axes and {c} input channels",
                "other-shape",
                weight.array.shape,
                image.shape,
            )
        k, _, r, s = weight.array.shape
        axes: dict[str, int | str] = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s}
        axes |= {"stride": self.equal_number(stride, "stride"), "padding": self.equal_number(padding, "padding")}
        inputs = {"image": image, "weight": self.value(weight)}
        if bias is not None:
            axes["epilogue"], inputs["bias"] = "bias", self.value(bias)
        return self.net.node(name, "conv2d", axes, inputs)

    def linear(self, name: str, x: Operand, weight: Constant, bias: Constant | None) -> Value:
        """Add x @ weight.T + bias; a missing bias is zeros, a single number is repeated."""
        rows = self.value(x)
        n, k = weight.array.shape
        if len(rows.shape) != 2 or rows.shape[1] != k:
            raise self.unsupported(
                f"rows of {k} features are needed, but '{rows.name}' has shape {rows.shape}; flatten '{rows.name}' "
                f"to rows of {k} features",
                "not-rows",
                rows.shape,
                k,
            )
        if bias is None:
            bias = Constant(f"{weight.name}.no_bias", np.zeros(n, np.float32))
        elif bias.array.shape != (n,):
            bias = Constant(f"{bias.name}.for_{n}", np.broadcast_to(bias.array, (1, n))[0])
        inputs = {"x": rows, "weight": self.value(weight), "bias": self.value(bias)}
        return self.net.node(name, "linear", {"m": rows.shape[0], "n": n, "k": k}, inputs)

    def batchnorm2d(self, name: str, x: Operand, parameters: Sequence[Constant], epsilon: float) -> Value:
        """Add a batch norm; `parameters` are scale, shift, mean and variance.

        An epsilon that differs from opbench's is added to the variance.
        """
        image = self.value(x)
        n, c, h, w = self.image(image)
        scale, shift, mean, variance = parameters
        if epsilon != EPSILON:
            shifted_variance = variance.array.astype(np.float64) + epsilon - EPSILON
            if shifted_variance.min() <= 0:
                raise self.unsupported(
                    f"epsilon={epsilon} with a variance of {variance.array.min()} is not supported, because their "
                    "sum must be above 0; increase epsilon",
                    "variance-too-small",
                    epsilon,
                )
            variance = Constant(f"{variance.name}.epsilon_{epsilon}", shifted_variance)
        inputs = dict(
            zip(("scale", "shift", "mean", "variance"), map(self.value, (scale, shift, mean, variance)), strict=True)
        )
        return self.net.node(name, "batchnorm2d", {"n": n, "c": c, "h": h, "w": w}, {"x": image, **inputs})

    def pool(
        self, name: str, operator: str, x: Operand, window: object, stride: object, padding: object, **modes: object
    ) -> Value:
        """Add maxpool2d or avgpool2d."""
        image = self.value(x)
        n, c, h, w = self.image(image)
        sizes = {"window": self.equal_number(window, "window"), "padding": self.equal_number(padding, "padding")}
        sizes["stride"] = self.equal_number(stride, "stride") if stride is not None else sizes["window"]
        return self.net.node(name, operator, {"n": n, "c": c, "h": h, "w": w, **sizes, **modes}, {"x": image})

    def pool_to_size(self, name: str, x: Operand, size: tuple[int, int]) -> Value:
        """Add an average pooling without gaps whose result has the given size."""
        image = self.value(x)
        _, _, h, w = self.image(image)
        if h % size[0] or w % size[1]:
            raise self.unsupported(
                f"pooling {h}x{w} to {size[0]}x{size[1]} is not supported; choose an output size that divides "
                f"{h}x{w}, so that all windows have the same size",
                "other-windows",
                (h, w),
                size,
            )
        return self.pool(name, "avgpool2d", image, (h // size[0], w // size[1]), None, 0)

    def mean_of_pixels(self, name: str, x: Operand, axes: Sequence[int], keep_axes: bool) -> Operand:
        """Add a mean, which must be over the two axes of an image's pixels."""
        image = self.value(x)
        positive_axes = sorted(axis % len(image.shape) for axis in axes)
        if positive_axes != [2, 3] or len(image.shape) != 4:
            raise self.unsupported(
                f"a mean over axes {positive_axes} of a value with {len(image.shape)} axes is not supported; use the "
                "mean over axes 2 and 3 of a value with the axes n, c, h, w",
                "other-axis",
                positive_axes,
            )
        if keep_axes:
            return self.pool_to_size(name, image, (1, 1))
        return self.reshape(name, self.pool_to_size(f"{name}.pooled", image, (1, 1)), image.shape[:2])

    def upsample(self, name: str, x: Operand, height: float, width: float, mode: str) -> Value:
        """Add an upsampling to `height` and `width`, both by the same integer factor."""
        image = self.value(x)
        _, _, h, w = self.image(image)
        scale = self.equal_number((height / h, width / w), "scale")
        if scale != height / h:
            raise self.unsupported(
                f"a resize factor of {height / h:g} is not supported; export the model with a whole factor, such as 2",
                "unsupported-option",
                ("scale", height / h),
            )
        return self.net.upsample2d(image, scale, mode, name=name)

    def concat(self, name: str, operands: Sequence[Operand], axis: int) -> Value:
        """Add concatenations of channels, two operands at a time."""
        values = [self.value(operand) for operand in operands]
        self.image(values[0])
        self.require_setting("axis", axis % 4, 1)
        if len(values) == 1:
            return values[0]
        result = values[0]
        for i, value in enumerate(values[1:], 1):
            result = self.net.concat(result, value, name=name if i == len(values) - 1 else f"{name}.{i}")
        return result

    def elementwise(self, name: str, op: str, a: Operand, b: Operand) -> Operand:
        """Add an elementwise node `a op b`; the smaller operand is broadcast to the larger."""
        if isinstance(a, Constant) and isinstance(b, Constant):
            ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
            return Constant(name, ufunc(a.array, b.array))
        if isinstance(a, Constant) and isinstance(b, Value):
            if op in ("add", "mul"):
                a, b = b, a
            else:
                a = Constant(f"{a.name}.for_{b.name}", np.broadcast_to(a.array, b.shape))
        x, y = self.value(a), self.value(replace(b, array=np.atleast_1d(b.array)) if isinstance(b, Constant) else b)
        if x.elements < y.elements and op in ("add", "mul"):
            x, y = y, x
        return self.net.elementwise(op, x, y, name=name)

    def activation(self, name: str, op: str, x: Operand) -> Value:
        """Add an activation of one input, such as gelu or silu."""
        return self.net.activation(op, self.value(x), name=name)

    def softmax(self, name: str, x: Operand, axis: int) -> Value:
        """Add a softmax over the last axis of rows, or over the channels of images with one pixel."""
        value = self.value(x)
        if axis % len(value.shape) != len(value.shape) - 1:
            raise self.unsupported(
                f"softmax over axis {axis} of {value.shape} is not supported; use the last axis",
                "other-axis",
                axis,
            )
        if len(value.shape) == 2:
            return self.net.softmax(value, name=name)
        cols = value.shape[-1]
        axes = {"rows": value.elements // cols, "cols": cols}
        rows = self.net.view(value, (axes["rows"], cols), name=f"{name}.rows")
        return self.net.view(self.net.softmax(rows, name=f"{name}.flat"), value.shape, name=name)

    def reshape(self, name: str, x: Operand, shape: Sequence[int]) -> Operand:
        """Return the same elements in another shape; one of its sizes may be -1."""
        old_shape = x.array.shape if isinstance(x, Constant) else x.shape
        sizes = [int(size) for size in shape]
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = math.prod(old_shape) // math.prod(size for size in sizes if size != -1)
        if math.prod(sizes) != math.prod(old_shape):
            raise self.unsupported(
                f"{tuple(old_shape)} cannot be viewed as {tuple(shape)}; choose a shape with the same number of "
                "elements",
                "other-shape",
                old_shape,
                shape,
            )
        if isinstance(x, Constant):
            return Constant(name, x.array.reshape(sizes))
        return x if tuple(sizes) == x.shape else self.net.view(x, tuple(sizes), name=name)

    def image(self, value: Value) -> tuple[int, int, int, int]:
        """Return the shape (n, c, h, w) of a value; raise UsageError if it is no image."""
        if len(value.shape) != 4:
            raise self.unsupported(
                f"'{value.name}' {value.shape} is not an image; the node needs a value with the four axes (n, c, h, w)",
                "not-an-image",
                value.shape,
            )
        return value.image
