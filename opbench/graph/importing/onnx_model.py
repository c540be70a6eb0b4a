"""Import ONNX models with operators of the default domain; shape computations are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opbench.errors import UsageError
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.importing.assembly import SELU_ALPHA, SELU_SCALE, Assembly, Constant, Operand

if TYPE_CHECKING:
    import onnx

Inputs = Sequence[Any]
Attributes = dict[str, Any]


def read_model(model: onnx.ModelProto, name: str) -> Graph:
    """Return the network of a model."""
    from onnx import TensorProto, helper, numpy_helper

    assembly, graph = Assembly(Builder(name)), model.graph
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    operand_by_name: dict[str, Operand] = {
        tensor.name: Constant(tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer
    }
    for graph_input in graph.input:
        if graph_input.name in operand_by_name:
            continue
        tensor_type = graph_input.type.tensor_type
        if tensor_type.elem_type != TensorProto.FLOAT:
            raise UsageError(
                f"{name}: input '{graph_input.name}' is {TensorProto.DataType.Name(tensor_type.elem_type)}, and only "
                "FLOAT is supported; export the model with float32 inputs",
                kind="other-dtype",
                subject=name,
            )
        sizes = [size.dim_value for size in tensor_type.shape.dim]
        if not all(sizes):
            raise UsageError(
                f"{name}: input '{graph_input.name}' has no fixed shape; export the model without dynamic_axes",
                kind="shape-not-fixed",
                subject=graph_input.name,
            )
        operand_by_name[graph_input.name] = assembly.net.input(graph_input.name, *sizes)
    for node in graph.node:
        assembly.node_name = f"'{node.name or node.output[0]}' ({node.op_type})"
        is_standard = node.domain in ("", "ai.onnx")
        assembly.require_known(node.op_type if is_standard else f"{node.domain}.{node.op_type}", OPERATORS)
        attributes = {
            attribute.name: _attribute_value(helper.get_attribute_value(attribute)) for attribute in node.attribute
        }
        if node.op_type == "Softmax" and opset < 13:
            attributes.setdefault("axis", 1)
        inputs = [_operand_named(assembly, operand_by_name, item) if item else None for item in node.input]
        operand_by_name[node.output[0]] = OPERATORS[node.op_type](assembly, node.output[0], inputs, attributes)
    outputs = []
    for result in graph.output:
        assembly.node_name = f"'{result.name}' (output)"
        value = assembly.value(_operand_named(assembly, operand_by_name, result.name))
        outputs.append(value if value.name == result.name else assembly.net.view(value, value.shape, name=result.name))
    return assembly.net.graph(*outputs)


def _operand_named(assembly: Assembly, operand_by_name: dict[str, Operand], name: str) -> Operand:
    """Return the operand with a name; raise UsageError if no earlier node gives it."""
    if name not in operand_by_name:
        raise assembly.unsupported(
            f"no earlier node produces '{name}' as its first output; use only the first output of each node",
            "no-producer",
            name,
        )
    return operand_by_name[name]


def _attribute_value(value: object) -> object:
    """Return an attribute as a Python value."""
    return value.decode() if isinstance(value, bytes) else value


def _optional_input(inputs: Inputs, index: int) -> Operand | None:
    """Return an optional input; None if the node does not have it."""
    return inputs[index] if index < len(inputs) else None


def _constant_integers(assembly: Assembly, x: object, role: str) -> list[int]:
    """Return the integers of a constant operand."""
    return [int(element) for element in np.atleast_1d(assembly.constant(x, role).array)]


# One function for each operator ------------------------------------------------------------------------------------


def _padding(assembly: Assembly, attributes: Attributes, window: Sequence[int]) -> object:
    """Return the padding, which must be equal on all sides; SAME requires odd windows and stride 1."""
    auto_pad = attributes.get("auto_pad", "NOTSET")
    if auto_pad in ("NOTSET", "VALID"):
        return attributes.get("pads", [0])
    if set(attributes.get("strides", [1])) != {1} or not all(size % 2 for size in window):
        raise assembly.unsupported(
            f"auto_pad={auto_pad} with strides or an even window is not supported; give the padding as numbers in "
            "the attribute pads",
            "other-auto-pad",
            auto_pad,
        )
    return [size // 2 for size in window]


def _conv(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a convolution."""
    assembly.require_setting("dilations", attributes.get("dilations", [1]), 1)
    assembly.require_setting("group", attributes.get("group", 1), 1)
    bias = None if _optional_input(inputs, 2) is None else assembly.constant(inputs[2], "bias")
    weight = assembly.constant(inputs[1], "weight")
    return assembly.conv2d(
        name,
        inputs[0],
        weight,
        bias,
        attributes.get("strides", [1]),
        _padding(assembly, attributes, weight.array.shape[2:]),
    )


def _gemm(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a linear layer from a general matrix product."""
    assembly.require_setting("alpha", attributes.get("alpha", 1.0), 1.0)
    assembly.require_setting("beta", attributes.get("beta", 1.0), 1.0)
    assembly.require_setting("transA", attributes.get("transA", 0), 0)
    weight = assembly.constant(inputs[1], "second matrix")
    bias = None if _optional_input(inputs, 2) is None else assembly.constant(inputs[2], "bias")
    return assembly.linear(name, inputs[0], weight if attributes.get("transB", 0) else weight.transposed(), bias)


def _matmul(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a matrix product with a constant matrix."""
    return assembly.linear(name, inputs[0], assembly.constant(inputs[1], "second matrix").transposed(), None)


def _relu(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a ReLU."""
    return assembly.net.relu(assembly.value(inputs[0]), name=name)


def _max_pool(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a max pooling."""
    assembly.require_setting("dilations", attributes.get("dilations", [1]), 1)
    assembly.require_setting("ceil_mode", attributes.get("ceil_mode", 0), 0)
    window = attributes["kernel_shape"]
    return assembly.pool(
        name, "maxpool2d", inputs[0], window, attributes.get("strides", [1]), _padding(assembly, attributes, window)
    )


def _average_pool(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add an average pooling."""
    assembly.require_setting("dilations", attributes.get("dilations", [1]), 1)
    assembly.require_setting("ceil_mode", attributes.get("ceil_mode", 0), 0)
    divisor = "window" if attributes.get("count_include_pad", 0) else "inside"
    window, strides = attributes["kernel_shape"], attributes.get("strides", [1])
    return assembly.pool(
        name, "avgpool2d", inputs[0], window, strides, _padding(assembly, attributes, window), divisor=divisor
    )


def _global_average_pool(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add the mean over all pixels of an image."""
    return assembly.pool_to_size(name, inputs[0], (1, 1))


def _reduce_mean(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a mean over all pixels of an image."""
    axes = _axes(assembly, inputs, attributes)
    return assembly.mean_of_pixels(name, inputs[0], axes, bool(attributes.get("keepdims", 1)))


def _batch_normalization(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a batch norm in inference mode."""
    assembly.require_setting("training_mode", attributes.get("training_mode", 0), 0)
    parameters = [
        assembly.constant(operand, role)
        for operand, role in zip(inputs[1:5], ("scale", "B", "mean", "var"), strict=True)
    ]
    # The attribute is a float32: the float32 nearest to 1e-5 means 1e-5.
    epsilon = float(str(np.float32(attributes.get("epsilon", 1e-5))))
    return assembly.batchnorm2d(name, inputs[0], parameters, epsilon)


def _resize(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a nearest or bilinear resize, in the modes in which an integer factor gives PyTorch's result."""
    image = assembly.value(inputs[0])
    n, c, *_ = assembly.image(image)
    scales, sizes = (
        (_optional_input(inputs, 2), _optional_input(inputs, 3))
        if len(inputs) > 2
        else (_optional_input(inputs, 1), None)
    )
    if sizes is not None:
        size = [float(number) for number in _constant_integers(assembly, sizes, "sizes")]
    else:
        factors = (
            assembly.constant(scales, "scales").array
            if scales is not None
            else np.array(attributes.get("scales", [1] * 4))
        )
        size = [float(old_size * factor) for old_size, factor in zip(image.shape, factors, strict=True)]
    if (size[0], size[1]) != (n, c):
        raise assembly.unsupported(
            f"resizing to {size} is not supported; change only height and width", "other-resize", tuple(size)
        )
    mode, coordinate_mode = (
        attributes.get("mode", "nearest"),
        attributes.get("coordinate_transformation_mode", "half_pixel"),
    )
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    if len(inputs) <= 2:  # Upsample, and Resize of opset 10, have no attribute for the mode
        coordinate_mode, rounding = "asymmetric", "floor"
    if mode == "nearest":
        if (coordinate_mode, rounding) not in NEAREST:
            raise assembly.unsupported(
                f"nearest resizing with {coordinate_mode} and {rounding} is not supported; export the model with "
                "asymmetric and floor",
                "other-nearest",
                (coordinate_mode, rounding),
            )
        return assembly.upsample(name, image, size[2], size[3], "nearest")
    assembly.require_setting("mode", mode, "linear")
    if coordinate_mode not in ("half_pixel", "pytorch_half_pixel"):
        raise assembly.unsupported(
            f"linear resizing with {coordinate_mode} is not supported; export the model with half_pixel "
            "(align_corners=False)",
            "other-linear",
            coordinate_mode,
        )
    return assembly.upsample(name, image, size[2], size[3], "bilinear")


NEAREST = (
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)
"""Modes in which an integer factor gives pixel y // scale."""


def _concat(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a concatenation of channels; constants are concatenated here."""
    if all(isinstance(part, Constant) for part in inputs):
        return Constant(name, np.concatenate([part.array for part in inputs], attributes["axis"]))
    return assembly.concat(name, inputs, attributes["axis"])


def _dropout(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a dropout in inference mode."""
    if _optional_input(inputs, 2) is not None:
        assembly.require_setting("training_mode", bool(assembly.constant(inputs[2], "training_mode").array), False)
    ratio = (
        float(assembly.constant(inputs[1], "ratio").array)
        if _optional_input(inputs, 1) is not None
        else attributes.get("ratio", 0.5)
    )
    return assembly.net.dropout(assembly.value(inputs[0]), round(100 * ratio), name=name)


def _flatten(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a view with two axes."""
    shape = assembly.value(inputs[0]).shape
    axis = attributes.get("axis", 1)
    rows = int(np.prod(shape[: axis if axis >= 0 else axis + len(shape)], dtype=np.int64))
    return assembly.reshape(name, inputs[0], (rows, -1))


def _reshape(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a view with another shape."""
    sizes = _constant_integers(assembly, inputs[1], "shape")
    old_shape = inputs[0].array.shape if isinstance(inputs[0], Constant) else inputs[0].shape
    if not attributes.get("allowzero", 0):
        sizes = [old_shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return assembly.reshape(name, inputs[0], sizes)


def _axes(assembly: Assembly, inputs: Inputs, attributes: Attributes) -> list[int]:
    """Return the axes that a node has as an input or an attribute."""
    return (
        _constant_integers(assembly, inputs[1], "axes")
        if _optional_input(inputs, 1) is not None
        else list(attributes.get("axes", []))
    )


def _squeeze(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a view without axes of size 1."""
    old_shape = inputs[0].array.shape if isinstance(inputs[0], Constant) else inputs[0].shape
    axes = [axis % len(old_shape) for axis in _axes(assembly, inputs, attributes)] or [
        i for i, size in enumerate(old_shape) if size == 1
    ]
    return assembly.reshape(name, inputs[0], [size for i, size in enumerate(old_shape) if i not in axes])


def _unsqueeze(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a view with further axes of size 1."""
    old_shape = list(inputs[0].array.shape if isinstance(inputs[0], Constant) else inputs[0].shape)
    axes = _axes(assembly, inputs, attributes)
    for axis in sorted(axis % (len(old_shape) + len(axes)) for axis in axes):
        old_shape.insert(axis, 1)
    return assembly.reshape(name, inputs[0], old_shape)


def _softmax(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a softmax."""
    return assembly.softmax(name, inputs[0], attributes.get("axis", -1))


def _activation(op: str, **parameters: tuple[float, float]) -> Callable[[Assembly, str, Inputs, Attributes], Operand]:
    """Return the function that adds an activation; each attribute has its default and its supported value."""

    def add_operator(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
        for parameter, (default, allowed) in parameters.items():
            assembly.require_number(parameter, attributes.get(parameter, default), allowed)
        return assembly.activation(name, op, inputs[0])

    return add_operator


def _gelu(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Add a GELU, exact or by tanh."""
    return assembly.activation(name, "gelu_tanh" if attributes.get("approximate") == "tanh" else "gelu", inputs[0])


def _transpose(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return a constant with its axes permuted."""
    constant = assembly.constant(inputs[0], "input")
    if constant.array.ndim == 2 and list(attributes.get("perm", [1, 0])) == [1, 0]:
        return constant.transposed()
    return Constant(name, constant.array.transpose(attributes.get("perm")))


def _identity(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return the operand unchanged."""
    return inputs[0]  # type: ignore[no-any-return]


def _elementwise(op: str) -> Callable[[Assembly, str, Inputs, Attributes], Operand]:
    """Return the function that adds an elementwise operator."""

    def add_operator(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
        if attributes:
            raise assembly.unsupported(
                f"{', '.join(attributes)} of opsets before 7 is not supported; convert the model with "
                "onnx.version_converter.convert_version(model, 13)",
                "old-opset",
                tuple(attributes),
            )
        return assembly.elementwise(name, op, inputs[0], inputs[1])

    return add_operator


# Shape computations, evaluated during the import --------------------------------------------------------------------


def _constant(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return the constant of a node."""
    from onnx import numpy_helper

    if "value" in attributes:
        return Constant(name, numpy_helper.to_array(attributes["value"]))
    return Constant(name, np.array(next(value for key, value in attributes.items() if key.startswith("value_"))))


def _shape(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return the shape of an operand as a constant."""
    old_shape = inputs[0].array.shape if isinstance(inputs[0], Constant) else inputs[0].shape
    return Constant(name, np.array(old_shape[attributes.get("start", 0) : attributes.get("end")], np.int64))


def _gather(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return selected elements of a constant."""
    array, index = assembly.constant(inputs[0], "input").array, assembly.constant(inputs[1], "indices").array
    return Constant(name, np.take(array, index, attributes.get("axis", 0)))


def _slice(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return a slice of a constant."""
    array = assembly.constant(inputs[0], "input").array
    starts, ends = _constant_integers(assembly, inputs[1], "starts"), _constant_integers(assembly, inputs[2], "ends")
    axes = (
        _constant_integers(assembly, inputs[3], "axes")
        if _optional_input(inputs, 3) is not None
        else range(len(starts))
    )
    steps = (
        _constant_integers(assembly, inputs[4], "steps")
        if _optional_input(inputs, 4) is not None
        else [1] * len(starts)
    )
    index = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return Constant(name, array[tuple(index)])


def _cast(assembly: Assembly, name: str, inputs: Inputs, attributes: Attributes) -> Operand:
    """Return a constant in another dtype."""
    from onnx import helper

    return Constant(
        name, assembly.constant(inputs[0], "input").array.astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    )


OPERATORS: dict[str, Callable[[Assembly, str, Inputs, Attributes], Operand]] = {
    "Abs": _activation("abs"),
    "Add": _elementwise("add"),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "Conv": _conv,
    "Div": _elementwise("div"),
    "Dropout": _dropout,
    "Elu": _activation("elu", alpha=(1.0, 1.0)),
    "Exp": _activation("exp"),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSigmoid": _activation("hardsigmoid", alpha=(0.2, 1 / 6), beta=(0.5, 0.5)),
    "HardSwish": _activation("hardswish"),
    "Identity": _identity,
    "LeakyRelu": _activation("leaky_relu", alpha=(0.01, 0.01)),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _elementwise("mul"),
    "ReduceMean": _reduce_mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Resize": _resize,
    "Selu": _activation("selu", alpha=(SELU_ALPHA, SELU_ALPHA), gamma=(SELU_SCALE, SELU_SCALE)),
    "Shape": _shape,
    "Sigmoid": _activation("sigmoid"),
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": _activation("softplus"),
    "Softsign": _activation("softsign"),
    "Squeeze": _squeeze,
    "Sub": _elementwise("sub"),
    "Tanh": _activation("tanh"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}
