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
OperandByNode = dict[str, object]
"""The operand of each node, or its number if it is a constant."""


def read_program(program: torch.export.ExportedProgram, name: str) -> Graph:
    """Return the network of an exported program."""
    assembly = Assembly(Builder(name))
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        raise UsageError(
            f"{name}: the program changes buffers ({next(iter(signature.buffers_to_mutate.values()))}); call .eval() "
            "on the module, then export the module again",
            kind="training-mode",
            subject=name,
        )
    operand_by_node: OperandByNode = {}
    outputs: list[Value] = []
    needed = _nodes_needed(program.graph)
    for node in program.graph.nodes:
        assembly.node_name = f"'{node.name}' ({node.target})"
        if node.op == "placeholder":
            operand_by_node[node.name] = _read_placeholder(assembly, program, node)
        elif node.op == "output":
            outputs = [
                assembly.value(_resolve_argument(operand_by_node, result))
                for result in _result_list(node.args[0])
                if result is not None
            ]
        elif node in needed:
            operand_by_node[node.name] = _import_node(assembly, operand_by_node, node)
    return assembly.net.graph(*outputs)


def _nodes_needed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes on which the output depends, without the shape checks of scripted programs."""
    needed, unvisited = set(), [node for node in graph.nodes if node.op == "output"]
    while unvisited:
        node = unvisited.pop()
        if node not in needed:
            needed.add(node)
            unvisited += node.all_input_nodes
    return needed


def _read_placeholder(assembly: Assembly, program: torch.export.ExportedProgram, node: torch.fx.Node) -> object:
    """Return an input, or a parameter under its name in the module."""
    signature = program.graph_signature
    parameter_names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constant_names = getattr(signature, "inputs_to_lifted_tensor_constants", {})
    if (target := parameter_names.get(node.name) or constant_names.get(node.name)) is not None:
        tensor = program.state_dict[target] if target in program.state_dict else program.constants[target]
        return Constant(target, tensor.detach().cpu().double().numpy())
    example = node.meta.get("val")
    if example is None or not hasattr(example, "shape"):
        return example
    if not all(isinstance(size, int) for size in example.shape):
        raise assembly.unsupported(
            f"the shape {tuple(example.shape)} is not fixed; export the module without dynamic_shapes",
            "shape-not-fixed",
            tuple(example.shape),
        )
    return assembly.net.input(node.name, *example.shape)


def _import_node(assembly: Assembly, operand_by_node: OperandByNode, node: torch.fx.Node) -> object:
    """Add the operator of one node to the network; return its operand."""
    if getattr(node.target, "__name__", "") == "getitem":
        items, index = operand_by_node[node.args[0].name], node.args[1]
        if index != 0:
            raise assembly.unsupported(
                f"result {index} of an operator with several results is not supported; use only the first result",
                "other-results",
                index,
            )
        return items
    schema: torch._C.FunctionSchema = getattr(node.target, "_schema", None)
    operator = schema.name.removeprefix("aten::").removesuffix("_") if schema else str(node.target)
    assembly.require_known(operator, OPERATORS)
    arguments: Arguments = {arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()}
    arguments |= dict(zip((arg.name for arg in schema.arguments), node.args, strict=False)) | node.kwargs
    arguments = {key: _resolve_argument(operand_by_node, value) for key, value in arguments.items()}
    result = OPERATORS[operator](assembly, node.name, arguments)
    shape = getattr(node.meta.get("val"), "shape", None)
    if isinstance(result, Value) and shape is not None and tuple(shape) != result.shape:
        raise assembly.unsupported(
            f"opbench computes the shape {result.shape}, but PyTorch has {tuple(shape)}; replace this layer in the "
            "model, or report the layer as a bug of opbench",
            "other-shape",
            result.shape,
            tuple(shape),
        )
    return result


def _resolve_argument(operand_by_node: OperandByNode, value: Any) -> Any:
    """Return an argument with nodes replaced by their operands or numbers."""
    if isinstance(value, list | tuple):
        return [_resolve_argument(operand_by_node, item) for item in value]
    return operand_by_node[value.name] if hasattr(value, "op") and hasattr(value, "meta") else value


def _result_list(results: object) -> list[object]:
    """Return nested results as a flat list."""
    return (
        [result for item in results for result in _result_list(item)]
        if isinstance(results, list | tuple)
        else [results]
    )


# One function for each operator ------------------------------------------------------------------------------------


def _conv2d(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a convolution; padding may be "same" or "valid"."""
    assembly.require_setting("dilation", arguments["dilation"], 1)
    assembly.require_setting("groups", arguments["groups"], 1)
    assembly.require_setting("transposed", arguments.get("transposed", False), False)
    weight = assembly.constant(arguments["weight"], "weight")
    padding = arguments["padding"]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        assembly.require_setting(
            "padding='same' with an even filter: size % 2", [size % 2 for size in weight.array.shape[2:]], 1
        )
        padding = [size // 2 for size in weight.array.shape[2:]]
    bias = None if arguments["bias"] is None else assembly.constant(arguments["bias"], "bias")
    return assembly.conv2d(name, arguments["input"], weight, bias, arguments["stride"], padding)


def _linear(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a linear layer."""
    bias = None if arguments["bias"] is None else assembly.constant(arguments["bias"], "bias")
    return assembly.linear(name, arguments["input"], assembly.constant(arguments["weight"], "weight"), bias)


def _addmm(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a matrix product with a bias, from torch.addmm."""
    assembly.require_setting("alpha", arguments["alpha"], 1)
    assembly.require_setting("beta", arguments["beta"], 1)
    weight = assembly.constant(arguments["mat2"], "second matrix").transposed()
    return assembly.linear(name, arguments["mat1"], weight, assembly.constant(arguments["self"], "bias"))


def _mm(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a matrix product with a constant matrix."""
    other = arguments["mat2"] if "mat2" in arguments else arguments["other"]
    return assembly.linear(name, arguments["self"], assembly.constant(other, "second matrix").transposed(), None)


def _transpose(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Return a constant matrix with its axes swapped."""
    x = assembly.constant(arguments["self"], "input")
    axes = [int(axis) % 2 for axis in arguments.get("dims", [arguments.get("dim0", 0), arguments.get("dim1", 1)])]
    if x.array.ndim != 2 or axes not in ([1, 0], [0, 1]):
        raise assembly.unsupported(
            f"axes {axes} of shape {x.array.shape} are not supported; swap exactly two axes", "other-axis", axes
        )
    return x.transposed() if axes == [1, 0] or "dim0" in arguments else x


def _batch_norm(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a batch norm in evaluation mode."""
    assembly.require_setting("training", arguments.get("training", False), False)
    if arguments["running_mean"] is None or arguments["running_var"] is None:
        raise assembly.unsupported(
            "batch norm without running statistics is not supported; create the layer with track_running_stats=True",
            "no-statistics",
        )
    mean, variance = (assembly.constant(arguments[key], key) for key in ("running_mean", "running_var"))
    scale = arguments["weight"] or Constant(f"{name}.ones", np.ones_like(mean.array))
    shift = arguments["bias"] or Constant(f"{name}.zeros", np.zeros_like(mean.array))
    return assembly.batchnorm2d(name, arguments["input"], (scale, shift, mean, variance), arguments["eps"])


def _max_pool2d(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a max pooling."""
    assembly.require_setting("dilation", arguments["dilation"], 1)
    assembly.require_setting("ceil_mode", arguments["ceil_mode"], False)
    return assembly.pool(
        name,
        "maxpool2d",
        arguments["self"],
        arguments["kernel_size"],
        arguments["stride"] or None,
        arguments["padding"],
    )


def _avg_pool2d(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add an average pooling."""
    assembly.require_setting("ceil_mode", arguments["ceil_mode"], False)
    assembly.require_setting("divisor_override", arguments["divisor_override"], None)
    divisor = "window" if arguments["count_include_pad"] else "inside"
    return assembly.pool(
        name,
        "avgpool2d",
        arguments["self"],
        arguments["kernel_size"],
        arguments["stride"] or None,
        arguments["padding"],
        divisor=divisor,
    )


def _adaptive_avg_pool2d(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add an average pooling to a fixed size."""
    return assembly.pool_to_size(name, arguments["self"], tuple(arguments["output_size"]))


def _mean(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a mean over all pixels of an image."""
    return assembly.mean_of_pixels(name, arguments["self"], arguments["dim"] or [], arguments["keepdim"])


def _upsample(mode: str) -> Callable[[Assembly, str, Arguments], Operand]:
    """Return the function that adds an upsampling in a mode."""

    def add_operator(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
        assembly.require_setting("align_corners", arguments.get("align_corners", False), False)
        image = assembly.value(arguments["input"] if "input" in arguments else arguments["self"])
        _, _, h, w = assembly.image(image)
        if (size := arguments.get("output_size")) is None:
            factors = arguments["scale_factors"]
            size = (h * factors[0], w * factors[1])
        return assembly.upsample(name, image, size[0], size[1], mode)

    return add_operator


def _cat(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a concatenation of channels."""
    return assembly.concat(name, arguments["tensors"], arguments["dim"])


def _reshape(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a view with another shape."""
    return assembly.reshape(name, arguments["self"], arguments.get("size", arguments.get("shape")))  # type: ignore[arg-type]


def _flatten(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a view in which some axes are merged."""
    shape = assembly.value(arguments["self"]).shape
    first, last = arguments["start_dim"] % len(shape), arguments["end_dim"] % len(shape)
    return assembly.reshape(name, arguments["self"], (*shape[:first], -1, *shape[last + 1 :]))


def _squeeze(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a view without axes of size 1."""
    shape = assembly.value(arguments["self"]).shape
    axes = arguments.get("dim", range(len(shape)))
    removed_axes = [axis % len(shape) for axis in ([axes] if isinstance(axes, int) else axes)]
    return assembly.reshape(
        name, arguments["self"], [s for i, s in enumerate(shape) if s != 1 or i not in removed_axes]
    )


def _unsqueeze(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a view with another axis of size 1."""
    x = arguments["self"]
    shape = list(x.array.shape if isinstance(x, Constant) else x.shape)
    shape.insert(arguments["dim"] % (len(shape) + 1), 1)
    return assembly.reshape(name, x, shape)


def _softmax(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a softmax."""
    return assembly.softmax(name, arguments["self"], arguments["dim"])


def _dropout(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a dropout in evaluation mode."""
    assembly.require_setting("train", arguments["train"], False)
    return assembly.net.dropout(assembly.value(arguments["input"]), round(100 * arguments["p"]), name=name)


def _relu(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a ReLU."""
    return assembly.net.relu(assembly.value(arguments["self"]), name=name)


def _activation(op: str, **parameters: float) -> Callable[[Assembly, str, Arguments], Operand]:
    """Return the function that adds an activation; its other arguments must have the given values."""

    def add_operator(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
        for parameter, allowed in parameters.items():
            assembly.require_number(parameter, float(arguments[parameter]), allowed)
        return assembly.activation(name, op, arguments["self"])

    return add_operator


def _gelu(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a GELU, exact or by tanh."""
    return assembly.activation(
        name, "gelu_tanh" if arguments.get("approximate") == "tanh" else "gelu", arguments["self"]
    )


def _elu(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add elu, or selu, which PyTorch decomposes to an elu with two constants."""
    is_selu = float(arguments["scale"]) != 1.0
    alpha, scale = (SELU_ALPHA, SELU_SCALE) if is_selu else (1.0, 1.0)
    return _activation("selu" if is_selu else "elu", alpha=alpha, scale=scale, input_scale=1.0)(
        assembly, name, arguments
    )


def _identity(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Return the operand unchanged."""
    return arguments["self"]  # type: ignore[no-any-return]


def _rsub(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a subtraction with exchanged operands."""
    return _elementwise("sub")(assembly, name, {**arguments, "self": arguments["other"], "other": arguments["self"]})


def _neg(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
    """Add a multiplication by -1."""
    return _elementwise("mul")(assembly, name, {**arguments, "other": -1})


def _elementwise(op: str) -> Callable[[Assembly, str, Arguments], Operand]:
    """Return the function that adds an elementwise operator; numbers become constants."""

    def add_operator(assembly: Assembly, name: str, arguments: Arguments) -> Operand:
        assembly.require_setting("alpha", arguments.get("alpha", 1), 1)
        assembly.require_setting("rounding_mode", arguments.get("rounding_mode"), None)
        pair = [arguments["self"], arguments["other"]]
        for i, x in enumerate(pair):
            if isinstance(x, int | float):
                pair[i] = Constant(f"{name}.scalar", np.array([x], np.float64))
        return assembly.elementwise(name, op, *pair)

    return add_operator


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
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
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
