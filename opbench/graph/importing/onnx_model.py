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


def read(model: onnx.ModelProto, name: str) -> Graph:
    """Return the network of a model."""
    from onnx import TensorProto, helper, numpy_helper

    build, graph = Assembly(Builder(name)), model.graph
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    known: dict[str, Operand] = {
        tensor.name: Constant(tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer
    }
    for graph_input in graph.input:
        if graph_input.name in known:
            continue
        kind = graph_input.type.tensor_type
        if kind.elem_type != TensorProto.FLOAT:
            raise UsageError(
                f"{name}: input '{graph_input.name}' is {TensorProto.DataType.Name(kind.elem_type)}; only FLOAT"
            )
        sizes = [size.dim_value for size in kind.shape.dim]
        if not all(sizes):
            raise UsageError(
                f"{name}: input '{graph_input.name}' has no fixed shape; export with fixed sizes",
                kind="shape-not-fixed",
                subject=graph_input.name,
            )
        known[graph_input.name] = build.net.input(graph_input.name, *sizes)
    for node in graph.node:
        build.where = f"'{node.name or node.output[0]}' ({node.op_type})"
        if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
            operator_type = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            raise build.refuse(
                f"unknown operator '{operator_type}'; supported: {', '.join(sorted(OPERATORS))}",
                "unknown-operator",
                operator_type,
                tuple(sorted(OPERATORS)),
            )
        attributes = {
            attribute.name: _attribute_value(helper.get_attribute_value(attribute)) for attribute in node.attribute
        }
        if node.op_type == "Softmax" and opset < 13:
            attributes.setdefault("axis", 1)
        inputs = [_operand_named(build, known, item) if item else None for item in node.input]
        known[node.output[0]] = OPERATORS[node.op_type](build, node.output[0], inputs, attributes)
    outputs = []
    for result in graph.output:
        build.where = f"'{result.name}' (output)"
        value = build.value(_operand_named(build, known, result.name))
        outputs.append(value if value.name == result.name else build.net.view(value, value.shape, name=result.name))
    return build.net.graph(*outputs)


def _operand_named(build: Assembly, known: dict[str, Operand], name: str) -> Operand:
    if name not in known:
        raise build.refuse(
            f"nothing before it gives '{name}'; of each node the first output is supported", "no-producer", name
        )
    return known[name]


def _attribute_value(value: object) -> object:
    """Return an attribute as a Python value."""
    return value.decode() if isinstance(value, bytes) else value


def _optional_input(inputs: Inputs, index: int) -> Operand | None:
    return inputs[index] if index < len(inputs) else None


def _numbers(build: Assembly, x: object, what: str) -> list[int]:
    return [int(number) for number in np.atleast_1d(build.constant(x, what).array)]


# One function an operator -----------------------------------------------------------------------------------------


def _padding(build: Assembly, a: Attributes, window: Sequence[int]) -> object:
    """Return the padding, which must be equal on all sides; SAME requires odd windows and stride 1."""
    way = a.get("auto_pad", "NOTSET")
    if way in ("NOTSET", "VALID"):
        return a.get("pads", [0])
    if set(a.get("strides", [1])) != {1} or not all(size % 2 for size in window):
        raise build.refuse(
            f"auto_pad={way} with strides or an even window is not supported; state the padding as pads",
            "other-auto-pad",
            way,
        )
    return [size // 2 for size in window]


def _conv(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    build.only("dilations", a.get("dilations", [1]), 1)
    build.only("group", a.get("group", 1), 1)
    bias = None if _optional_input(x, 2) is None else build.constant(x[2], "bias")
    weight = build.constant(x[1], "weight")
    return build.conv2d(name, x[0], weight, bias, a.get("strides", [1]), _padding(build, a, weight.array.shape[2:]))


def _gemm(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    build.only("alpha", a.get("alpha", 1.0), 1.0)
    build.only("beta", a.get("beta", 1.0), 1.0)
    build.only("transA", a.get("transA", 0), 0)
    weight = build.constant(x[1], "second matrix")
    bias = None if _optional_input(x, 2) is None else build.constant(x[2], "bias")
    return build.linear(name, x[0], weight if a.get("transB", 0) else weight.transposed(), bias)


def _matmul(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return build.linear(name, x[0], build.constant(x[1], "second matrix").transposed(), None)


def _relu(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return build.net.relu(build.value(x[0]), name=name)


def _max_pool(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    build.only("dilations", a.get("dilations", [1]), 1)
    build.only("ceil_mode", a.get("ceil_mode", 0), 0)
    window = a["kernel_shape"]
    return build.pool(name, "maxpool2d", x[0], window, a.get("strides", [1]), _padding(build, a, window))


def _average_pool(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    build.only("dilations", a.get("dilations", [1]), 1)
    build.only("ceil_mode", a.get("ceil_mode", 0), 0)
    divisor = "window" if a.get("count_include_pad", 0) else "inside"
    window, strides = a["kernel_shape"], a.get("strides", [1])
    return build.pool(name, "avgpool2d", x[0], window, strides, _padding(build, a, window), divisor=divisor)


def _global_average_pool(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return build.pool_to(name, x[0], (1, 1))


def _reduce_mean(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    image = build.value(x[0])
    axes = sorted(axis % len(image.shape) for axis in _axes(build, x, a))
    if axes != [2, 3] or len(image.shape) != 4:
        raise build.refuse(
            f"a mean over axes {axes} is not supported; only the mean over all pixels of an image is",
            " other-axis",
            axes,
        )
    if a.get("keepdims", 1):
        return build.pool_to(name, image, (1, 1))
    return build.reshape(name, build.pool_to(f"{name}.pooled", image, (1, 1)), image.shape[:2])


def _batch_normalization(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    build.only("training_mode", a.get("training_mode", 0), 0)
    parts = [build.constant(part, what) for part, what in zip(x[1:5], ("scale", "B", "mean", "var"), strict=True)]
    # The attribute is a float32: the float32 nearest to 1e-5 means 1e-5.
    epsilon = float(str(np.float32(a.get("epsilon", 1e-5))))
    return build.batchnorm2d(name, x[0], parts, epsilon)


def _resize(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    """Add a nearest or bilinear resize, in the modes in which an integer factor gives PyTorch's result."""
    image = build.value(x[0])
    n, c, *_ = build.image(image)
    scales, sizes = (_optional_input(x, 2), _optional_input(x, 3)) if len(x) > 2 else (_optional_input(x, 1), None)
    if sizes is not None:
        size = [float(number) for number in _numbers(build, sizes, "sizes")]
    else:
        factors = build.constant(scales, "scales").array if scales is not None else np.array(a.get("scales", [1] * 4))
        size = [float(have * factor) for have, factor in zip(image.shape, factors, strict=True)]
    if (size[0], size[1]) != (n, c):
        raise build.refuse(f"resizing to {size} changes more than height and width", "other-resize", tuple(size))
    mode, place = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
    rounding = a.get("nearest_mode", "round_prefer_floor")
    if len(x) <= 2:  # Upsample, and Resize of opset 10, which had no choice
        place, rounding = "asymmetric", "floor"
    if mode == "nearest":
        if (place, rounding) not in NEAREST:
            raise build.refuse(
                f"nearest by {place} and {rounding} is not supported; only asymmetric with floor is supported",
                "other-nearest",
                (place, rounding),
            )
        return build.upsample(name, image, size[2], size[3], "nearest")
    build.only("mode", mode, "linear")
    if place not in ("half_pixel", "pytorch_half_pixel"):
        raise build.refuse(f"linear by {place} is not supported; only half_pixel is supported", "other-linear", place)
    return build.upsample(name, image, size[2], size[3], "bilinear")


NEAREST = (
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)
"""Modes in which an integer factor gives pixel y // scale."""


def _concat(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    if all(isinstance(part, Constant) for part in x):
        return Constant(name, np.concatenate([part.array for part in x], a["axis"]))
    return build.concat(name, x, a["axis"])


def _dropout(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    if _optional_input(x, 2) is not None:
        build.only("training_mode", bool(build.constant(x[2], "training_mode").array), False)
    ratio = float(build.constant(x[1], "ratio").array) if _optional_input(x, 1) is not None else a.get("ratio", 0.5)
    return build.net.dropout(build.value(x[0]), round(100 * ratio), name=name)


def _flatten(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    shape = build.value(x[0]).shape
    axis = a.get("axis", 1)
    rows = int(np.prod(shape[: axis if axis >= 0 else axis + len(shape)], dtype=np.int64))
    return build.reshape(name, x[0], (rows, -1))


def _reshape(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    sizes = _numbers(build, x[1], "shape")
    have = x[0].array.shape if isinstance(x[0], Constant) else x[0].shape
    if not a.get("allowzero", 0):
        sizes = [have[i] if size == 0 else size for i, size in enumerate(sizes)]
    return build.reshape(name, x[0], sizes)


def _axes(build: Assembly, x: Inputs, a: Attributes) -> list[int]:
    return _numbers(build, x[1], "axes") if _optional_input(x, 1) is not None else list(a.get("axes", []))


def _squeeze(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    have = x[0].array.shape if isinstance(x[0], Constant) else x[0].shape
    axes = [axis % len(have) for axis in _axes(build, x, a)] or [i for i, size in enumerate(have) if size == 1]
    return build.reshape(name, x[0], [size for i, size in enumerate(have) if i not in axes])


def _unsqueeze(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    have = list(x[0].array.shape if isinstance(x[0], Constant) else x[0].shape)
    axes = _axes(build, x, a)
    for axis in sorted(axis % (len(have) + len(axes)) for axis in axes):
        have.insert(axis, 1)
    return build.reshape(name, x[0], have)


def _softmax(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return build.softmax(name, x[0], a.get("axis", -1))


def _activation(op: str, **parameters: tuple[float, float]) -> Callable[[Assembly, str, Inputs, Attributes], Operand]:
    """Return the function that adds an activation; each attribute has its default and its supported value."""

    def build_it(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
        for parameter, (default, allowed) in parameters.items():
            build.near(parameter, a.get(parameter, default), allowed)
        return build.activation(name, op, x[0])

    return build_it


def _gelu(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return build.activation(name, "gelu_tanh" if a.get("approximate") == "tanh" else "gelu", x[0])


def _transpose(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    constant = build.constant(x[0], "input")
    if constant.array.ndim == 2 and list(a.get("perm", [1, 0])) == [1, 0]:
        return constant.transposed()
    return Constant(name, constant.array.transpose(a.get("perm")))


def _identity(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    return x[0]  # type: ignore[no-any-return]


def _elementwise(op: str) -> Callable[[Assembly, str, Inputs, Attributes], Operand]:
    def build_it(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
        if a:
            raise build.refuse(
                f"{', '.join(a)} of opsets before 7 is not supported; convert the model to a newer one",
                "old-opset",
                tuple(a),
            )
        return build.elementwise(name, op, x[0], x[1])

    return build_it


# What stands around shapes: computed here -------------------------------------------------------------------------


def _constant(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    from onnx import numpy_helper

    if "value" in a:
        return Constant(name, numpy_helper.to_array(a["value"]))
    return Constant(name, np.array(next(value for key, value in a.items() if key.startswith("value_"))))


def _shape(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    have = x[0].array.shape if isinstance(x[0], Constant) else x[0].shape
    return Constant(name, np.array(have[a.get("start", 0) : a.get("end")], np.int64))


def _gather(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    array, index = build.constant(x[0], "input").array, build.constant(x[1], "indices").array
    return Constant(name, np.take(array, index, a.get("axis", 0)))


def _slice(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    array = build.constant(x[0], "input").array
    starts, ends = _numbers(build, x[1], "starts"), _numbers(build, x[2], "ends")
    axes = _numbers(build, x[3], "axes") if _optional_input(x, 3) is not None else range(len(starts))
    steps = _numbers(build, x[4], "steps") if _optional_input(x, 4) is not None else [1] * len(starts)
    where = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(start, end, step)
    return Constant(name, array[tuple(where)])


def _cast(build: Assembly, name: str, x: Inputs, a: Attributes) -> Operand:
    from onnx import helper

    return Constant(name, build.constant(x[0], "input").array.astype(helper.tensor_dtype_to_np_dtype(a["to"])))


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
