"""Import PyTorch's exported programs, which consist of ATen operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from opbench.errors import UsageError
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.importing.assembly import SELU_ALPHA, SELU_SCALE, Assembly, Constant, Operand
from opbench.graph.values import Value

if TYPE_CHECKING:
    import torch

Arguments = dict[str, Any]
"""The arguments of one call by name, from its operator's schema."""
Known = dict[str, object]
"""For each node, its operand, or its number if it is a constant."""


def read(program: torch.export.ExportedProgram, name: str) -> Graph:
    """Return the network of an exported program."""
    build = Assembly(Builder(name))
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        raise UsageError(
            f"{name}: it changes buffers ({next(iter(signature.buffers_to_mutate.values()))}); export .eval()"
        )
    known: Known = {}
    outputs: list[Value] = []
    needed = _nodes_needed(program.graph)
    for node in program.graph.nodes:
        build.where = f"'{node.name}' ({node.target})"
        if node.op == "placeholder":
            known[node.name] = _read_placeholder(build, program, node)
        elif node.op == "output":
            outputs = [
                build.value(_resolve_argument(known, result))
                for result in _flatten_results(node.args[0])
                if result is not None
            ]
        elif node in needed:
            known[node.name] = _import_node(build, known, node)
    return build.net.graph(*outputs)


def _nodes_needed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes on which the output depends, without the shape checks of scripted programs."""
    needed, todo = set(), [node for node in graph.nodes if node.op == "output"]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    return needed


def _read_placeholder(build: Assembly, program: torch.export.ExportedProgram, node: torch.fx.Node) -> object:
    """Return an input, or a parameter under its name in the module."""
    signature = program.graph_signature
    tied = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted = getattr(signature, "inputs_to_lifted_tensor_constants", {})
    if (target := tied.get(node.name) or lifted.get(node.name)) is not None:
        tensor = program.state_dict[target] if target in program.state_dict else program.constants[target]
        return Constant(target, tensor.detach().cpu().double().numpy())
    val = node.meta.get("val")
    if val is None or not hasattr(val, "shape"):
        return val
    if not all(isinstance(size, int) for size in val.shape):
        raise build.refuse(
            f"its shape {tuple(val.shape)} is not fixed; export without dynamic_shapes",
            "shape-not-fixed",
            tuple(val.shape),
        )
    return build.net.input(node.name, *val.shape)


def _import_node(build: Assembly, known: Known, node: torch.fx.Node) -> object:
    if getattr(node.target, "__name__", "") == "getitem":
        items, index = known[node.args[0].name], node.args[1]
        if index != 0:
            raise build.refuse("only the first result of its node is supported", "other-results", index)
        return items
    schema: torch._C.FunctionSchema = getattr(node.target, "_schema", None)
    operator = schema.name.removeprefix("aten::").removesuffix("_") if schema else str(node.target)
    if operator not in OPERATORS:
        raise build.refuse(
            f"unknown operator '{operator}'; supported: {', '.join(sorted(OPERATORS))}",
            "unknown-operator",
            operator,
            tuple(sorted(OPERATORS)),
        )
    arguments: Arguments = {arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()}
    arguments |= dict(zip((arg.name for arg in schema.arguments), node.args, strict=False)) | node.kwargs
    arguments = {key: _resolve_argument(known, value) for key, value in arguments.items()}
    result = OPERATORS[operator](build, node.name, arguments)
    shape = getattr(node.meta.get("val"), "shape", None)
    if isinstance(result, Value) and shape is not None and tuple(shape) != result.shape:
        raise build.refuse(
            f"it gives {result.shape} where PyTorch has {tuple(shape)}", "other-shape", result.shape, tuple(shape)
        )
    return result


def _resolve_argument(known: Known, value: Any) -> Any:
    """Return an argument with nodes replaced by their operands or numbers."""
    if isinstance(value, list | tuple):
        return [_resolve_argument(known, item) for item in value]
    return known[value.name] if hasattr(value, "op") and hasattr(value, "meta") else value


def _flatten_results(results: object) -> list[object]:
    return (
        [result for item in results for result in _flatten_results(item)]
        if isinstance(results, list | tuple)
        else [results]
    )


# One function an operator -----------------------------------------------------------------------------------------


def _conv2d(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("dilation", a["dilation"], 1)
    build.only("groups", a["groups"], 1)
    build.only("transposed", a.get("transposed", False), False)
    weight = build.constant(a["weight"], "weight")
    padding = a["padding"]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        build.only("padding='same' with an even filter: size % 2", [size % 2 for size in weight.array.shape[2:]], 1)
        padding = [size // 2 for size in weight.array.shape[2:]]
    bias = None if a["bias"] is None else build.constant(a["bias"], "bias")
    return build.conv2d(name, a["input"], weight, bias, a["stride"], padding)


def _linear(build: Assembly, name: str, a: Arguments) -> Operand:
    bias = None if a["bias"] is None else build.constant(a["bias"], "bias")
    return build.linear(name, a["input"], build.constant(a["weight"], "weight"), bias)


def _addmm(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("alpha", a["alpha"], 1)
    build.only("beta", a["beta"], 1)
    weight = build.constant(a["mat2"], "second matrix").transposed()
    return build.linear(name, a["mat1"], weight, build.constant(a["self"], "bias"))


def _mm(build: Assembly, name: str, a: Arguments) -> Operand:
    other = a["mat2"] if "mat2" in a else a["other"]
    return build.linear(name, a["self"], build.constant(other, "second matrix").transposed(), None)


def _transpose(build: Assembly, name: str, a: Arguments) -> Operand:
    x = build.constant(a["self"], "input")
    axes = [int(axis) % 2 for axis in a.get("dims", [a.get("dim0", 0), a.get("dim1", 1)])]
    if x.array.ndim != 2 or axes not in ([1, 0], [0, 1]):
        raise build.refuse(
            f"axes {axes} of shape {x.array.shape} are not supported; only two axes can be swapped", "other-axis", axes
        )
    return x.transposed() if axes == [1, 0] or "dim0" in a else x


def _batch_norm(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("training", a.get("training", False), False)
    if a["running_mean"] is None or a["running_var"] is None:
        raise build.refuse("batch norm without running statistics is not supported", "no-statistics")
    mean, variance = (build.constant(a[key], key) for key in ("running_mean", "running_var"))
    scale = a["weight"] or Constant(f"{name}.ones", np.ones_like(mean.array))
    shift = a["bias"] or Constant(f"{name}.zeros", np.zeros_like(mean.array))
    return build.batchnorm2d(name, a["input"], (scale, shift, mean, variance), a["eps"])


def _max_pool2d(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("dilation", a["dilation"], 1)
    build.only("ceil_mode", a["ceil_mode"], False)
    return build.pool(name, "maxpool2d", a["self"], a["kernel_size"], a["stride"] or None, a["padding"])


def _avg_pool2d(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("ceil_mode", a["ceil_mode"], False)
    build.only("divisor_override", a["divisor_override"], None)
    divisor = "window" if a["count_include_pad"] else "inside"
    return build.pool(
        name, "avgpool2d", a["self"], a["kernel_size"], a["stride"] or None, a["padding"], divisor=divisor
    )


def _adaptive(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.pool_to(name, a["self"], tuple(a["output_size"]))


def _mean(build: Assembly, name: str, a: Arguments) -> Operand:
    image = build.value(a["self"])
    axes = sorted(axis % len(image.shape) for axis in a["dim"] or [])
    if axes != [2, 3] or len(image.shape) != 4:
        raise build.refuse(
            f"a mean over axes {a['dim']} is not supported; only the mean over all pixels of an image is",
            "other-axis",
            a["dim"],
        )
    pooled = build.pool_to(name if a["keepdim"] else f"{name}.pooled", image, (1, 1))
    return pooled if a["keepdim"] else build.reshape(name, pooled, image.shape[:2])


def _upsample(mode: str) -> Callable[[Assembly, str, Arguments], Operand]:
    def build_it(build: Assembly, name: str, a: Arguments) -> Operand:
        build.only("align_corners", a.get("align_corners", False), False)
        image = build.value(a["input"] if "input" in a else a["self"])
        _, _, h, w = build.image(image)
        if (size := a.get("output_size")) is None:
            factors = a["scale_factors"]
            size = (h * factors[0], w * factors[1])
        return build.upsample(name, image, size[0], size[1], mode)

    return build_it


def _cat(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.concat(name, a["tensors"], a["dim"])


def _reshape(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.reshape(name, a["self"], a.get("size", a.get("shape")))  # type: ignore[arg-type]


def _flatten(build: Assembly, name: str, a: Arguments) -> Operand:
    shape = build.value(a["self"]).shape
    first, last = a["start_dim"] % len(shape), a["end_dim"] % len(shape)
    return build.reshape(name, a["self"], (*shape[:first], -1, *shape[last + 1 :]))


def _squeeze(build: Assembly, name: str, a: Arguments) -> Operand:
    shape = build.value(a["self"]).shape
    axes = a.get("dim", range(len(shape)))
    chosen = [axis % len(shape) for axis in ([axes] if isinstance(axes, int) else axes)]
    return build.reshape(name, a["self"], [s for i, s in enumerate(shape) if s != 1 or i not in chosen])


def _unsqueeze(build: Assembly, name: str, a: Arguments) -> Operand:
    x = a["self"]
    shape = list(x.array.shape if isinstance(x, Constant) else x.shape)
    shape.insert(a["dim"] % (len(shape) + 1), 1)
    return build.reshape(name, x, shape)


def _softmax(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.softmax(name, a["self"], a["dim"])


def _dropout(build: Assembly, name: str, a: Arguments) -> Operand:
    build.only("train", a["train"], False)
    return build.net.dropout(build.value(a["input"]), round(100 * a["p"]), name=name)


def _relu(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.net.relu(build.value(a["self"]), name=name)


def _activation(op: str, **parameters: float) -> Callable[[Assembly, str, Arguments], Operand]:
    """Return the function that adds an activation; its other arguments must have the given values."""

    def build_it(build: Assembly, name: str, a: Arguments) -> Operand:
        for parameter, allowed in parameters.items():
            build.near(parameter, float(a[parameter]), allowed)
        return build.activation(name, op, a["self"])

    return build_it


def _gelu(build: Assembly, name: str, a: Arguments) -> Operand:
    return build.activation(name, "gelu_tanh" if a.get("approximate") == "tanh" else "gelu", a["self"])


def _elu(build: Assembly, name: str, a: Arguments) -> Operand:
    """Add elu, or selu, which PyTorch decomposes to an elu with two constants."""
    is_selu = float(a["scale"]) != 1.0
    alpha, scale = (SELU_ALPHA, SELU_SCALE) if is_selu else (1.0, 1.0)
    return _activation("selu" if is_selu else "elu", alpha=alpha, scale=scale, input_scale=1.0)(build, name, a)


def _identity(build: Assembly, name: str, a: Arguments) -> Operand:
    return a["self"]  # type: ignore[no-any-return]


def _rsub(build: Assembly, name: str, a: Arguments) -> Operand:
    return _elementwise("sub")(build, name, {**a, "self": a["other"], "other": a["self"]})


def _neg(build: Assembly, name: str, a: Arguments) -> Operand:
    return _elementwise("mul")(build, name, {**a, "other": -1})


def _elementwise(op: str) -> Callable[[Assembly, str, Arguments], Operand]:
    def build_it(build: Assembly, name: str, a: Arguments) -> Operand:
        build.only("alpha", a.get("alpha", 1), 1)
        build.only("rounding_mode", a.get("rounding_mode"), None)
        pair = [a["self"], a["other"]]
        for i, x in enumerate(pair):
            if isinstance(x, int | float):
                pair[i] = Constant(f"{name}.scalar", np.array([x], np.float64))
        return build.elementwise(name, op, *pair)

    return build_it


OPERATORS: dict[str, Callable[[Assembly, str, Arguments], Operand]] = {
    "conv2d": _conv2d,
    "convolution": _conv2d,
    "_convolution": _conv2d,
    "_convolution_mode": _conv2d,
    "linear": _linear,
    "addmm": _addmm,
    "mm": _mm,
    "matmul": _mm,
    "t": _transpose,
    "transpose": _transpose,
    "permute": _transpose,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "max_pool2d": _max_pool2d,
    "max_pool2d_with_indices": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive,
    "mean": _mean,
    "upsample_nearest2d": _upsample("nearest"),
    "upsample_bilinear2d": _upsample("bilinear"),
    "cat": _cat,
    "concat": _cat,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "reshape": _reshape,
    "flatten": _flatten,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "softmax": _softmax,
    "_softmax": _softmax,
    "dropout": _dropout,
    "feature_dropout": _dropout,
    "relu": _relu,
    "gelu": _gelu,
    "silu": _activation("silu"),
    "sigmoid": _activation("sigmoid"),
    "tanh": _activation("tanh"),
    "leaky_relu": _activation("leaky_relu", negative_slope=0.01),
    "elu": _elu,
    "selu": _activation("selu"),
    "softplus": _activation("softplus", beta=1.0, threshold=20.0),
    "hardswish": _activation("hardswish"),
    "hardsigmoid": _activation("hardsigmoid"),
    "hardtanh": _activation("hardtanh", min_val=-1.0, max_val=1.0),
    "exp": _activation("exp"),
    "abs": _activation("abs"),
    "clone": _identity,
    "contiguous": _identity,
    "alias": _identity,
    "detach": _identity,
    "detach_": _identity,
    "add": _elementwise("add"),
    "sub": _elementwise("sub"),
    "rsub": _rsub,
    "neg": _neg,
    "mul": _elementwise("mul"),
    "div": _elementwise("div"),
}
"""Functions by ATen's names without overload; in-place operators have the same function."""
