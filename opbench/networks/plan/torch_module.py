"""Convert a network to a PyTorch module of plain calls, to run eagerly or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.layouts import has_image_layouts
from opbench.graph.training import STATISTICS
from opbench.graph.values import Node

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.fx import Node as Call

EPSILON = 1e-5
"""The term that batch norm adds to a variance."""
ARITHMETIC = ("add", "sub", "mul", "div", "add_relu")
"""Operations of `elementwise` on two operands; PyTorch calls the plain ones by the same names."""


def to_module(
    graph: Graph,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    channels_last: bool = False,
    training: bool = False,
    masks: Mapping[str, np.ndarray] | None = None,
) -> torch.fx.GraphModule:
    """Return a `torch.fx.GraphModule` that computes a network in nchw.

    It maps the inputs in order to a tuple of outputs. Its code is a straight line of calls of torch and
    torch.nn.functional, which `torch.compile` sees as a whole. With `channels_last` the weights of convolutions
    have that memory format. With `training` batch norm uses the statistics of the batch, dropout is active
    (with `masks`, factors by node, if given), and weights are parameters, which `weight_of` returns. Raises
    UsageError, naming the node, for an operator without a counterpart.
    """
    import torch

    root, trace = torch.nn.Module(), torch.fx.Graph()
    known = {name: trace.placeholder(_identifier(name)) for name in graph.inputs}

    def place(name: str, array: np.ndarray, *, learned: bool) -> Call:
        tensor = torch.from_numpy(np.array(array)).to(device, getattr(torch, dtype))  # a copy of the network's memory
        if channels_last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        if learned:
            root.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            root.register_buffer(name, tensor)
        return trace.get_attr(name)

    norms = [node for node in graph.nodes if node.operator == "batchnorm2d"]
    measured = {node.inputs[part] for node in norms for part in STATISTICS}
    depthwise = {node.inputs["weight"] for node in graph.nodes if node.operator == "depthwise_conv2d"}
    for number, (name, weight) in enumerate(graph.weights.items()):
        array = weight[:, None] if name in depthwise else weight
        known[name] = place(f"weight{number}", array, learned=training and name not in measured)
    factors = {
        name: place(f"mask{number}", mask, learned=False) for number, (name, mask) in enumerate((masks or {}).items())
    }

    def get(name: str) -> Call:
        value = graph.values[name]
        if name not in known:  # a view of one that is there
            known[name] = trace.call_function(torch.reshape, (get(value.of), tuple(value.shape)))
        return known[name]

    for node in graph.nodes:
        call_of_tensor = {tensor: get(name) for tensor, name in node.inputs.items()}
        if node.name in factors:
            made = [trace.call_function(torch.mul, (call_of_tensor["x"], factors[node.name]))]
        else:
            made = _call(trace, graph, node, call_of_tensor, training)
        known |= dict(zip(node.outputs.values(), made, strict=True))
    trace.output(tuple(get(name) for name in graph.outputs))
    trace.lint()
    return torch.fx.GraphModule(root, trace, _identifier(graph.name)).eval()


def weight_of(module: torch.fx.GraphModule, graph: Graph, name: str) -> Tensor:
    """Return the tensor of a network's weight in a module from `to_module`."""
    return getattr(module, f"weight{list(graph.weights).index(name)}")


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned[:1].isalpha() else f"n{cleaned}"


def _call(
    trace: torch.fx.Graph, graph: Graph, node: Node, inputs: Mapping[str, Call], training: bool
) -> list[Call | None]:
    """Add the calls that compute a node; return its outputs in the order of its problem."""
    import torch

    functional, axes = torch.nn.functional, node.problem.axes
    if has_image_layouts(node.problem) and axes["layout"] != "nchw":
        raise UsageError(
            f"{node.name}: it works in {axes['layout']}; PyTorch is given a network as it was built, in nchw",
            kind="other-layout",
            subject=node.name,
            value=axes["layout"],
            allowed="nchw",
        )

    def call(function: Callable[..., object], *args: object, **options: object) -> Call:
        return trace.call_function(function, args, options)

    def depthwise() -> Call:
        geometry = {name: axes[name] for name in ("stride", "padding", "dilation")}
        return call(
            functional.conv2d, inputs["image"], inputs["weight"], inputs.get("bias"), groups=axes["c"], **geometry
        )

    def window(function: Callable[..., object], **options: object) -> Call:
        return call(function, inputs["x"], axes["window"], axes["stride"], axes["padding"], **options)

    def upsampled(x: Call, scale: int | str, mode: int | str) -> Call:
        corners = {"align_corners": False} if mode == "bilinear" else {}
        return call(functional.interpolate, x, scale_factor=scale, mode=mode, **corners)

    def norm() -> Call:
        parts = {"weight": inputs["scale"], "bias": inputs["shift"], "training": training, "eps": EPSILON}
        return call(functional.batch_norm, inputs["x"], inputs["mean"], inputs["variance"], **parts)

    def layer_norm() -> list[Call | None]:
        total = call(torch.add, inputs["x"], inputs["residual"]) if "residual" in inputs else inputs["x"]
        shape = (axes["cols"],)
        out = call(functional.layer_norm, total, shape, inputs["weight"], inputs["bias"], EPSILON)
        return [out, None, None, *([total] if "residual" in inputs else [])]  # nothing here reads mean and rstd

    def group_norm() -> list[Call | None]:
        parts = (axes["groups"], inputs["weight"], inputs["bias"], EPSILON)
        out = call(functional.group_norm, inputs["x"], *parts)
        return [call(functional.silu, out) if axes["activation"] == "silu" else out, None, None]

    def attention() -> Call:
        sizes = [int(axes[name]) for name in ("batch", "queries", "heads", "depth")]
        batch, tokens, heads, depth = sizes
        packed = call(torch.reshape, inputs["qkv"], (batch, tokens, 3, heads, depth))
        parts = [call(torch.transpose, call(torch.select, packed, 2, part), 1, 2) for part in range(3)]
        out = call(functional.scaled_dot_product_attention, *parts, is_causal=axes["mask"] == "causal")
        return call(torch.reshape, call(torch.transpose, out, 1, 2), (batch * tokens, heads * depth))

    def rows() -> Call:
        return call(torch.index_select, inputs["data"], 0, call(torch.reshape, inputs["order"], (axes["rows"],)))

    def joined() -> Call:
        return call(torch.cat, (inputs["skip"], upsampled(inputs["low"], 2, "nearest")), 1)

    def conv(image: Call) -> Call:
        geometry = {"stride": axes.get("stride", 1), "padding": axes["padding"]}
        product = call(functional.conv2d, image, inputs["weight"], inputs.get("bias"), **geometry)
        return call(torch.add, product, inputs["residual"]) if "residual" in inputs else product

    makers: dict[str, Callable[[], Call | list[Call | None]]] = {
        "layernorm": layer_norm,
        "groupnorm": group_norm,
        "layout2d": lambda: call(torch.permute, inputs["x"], (0, 2, 3, 1) if axes["to"] == "nhwc" else (0, 3, 1, 2)),
        "attention": attention,
        "gather": rows,
        "conv2d": lambda: conv(inputs["image"]),
        "depthwise_conv2d": depthwise,
        "linear": lambda: call(functional.linear, inputs["x"], inputs["weight"], inputs.get("bias")),
        "matmul": lambda: call(torch.matmul, inputs["a"], inputs["b"]),
        "relu": lambda: call(functional.relu, inputs["x"]),
        "maxpool2d": lambda: window(functional.max_pool2d),
        "avgpool2d": lambda: window(functional.avg_pool2d, count_include_pad=axes["divisor"] == "window"),
        "upsample2d": lambda: upsampled(inputs["x"], axes["scale"], axes["mode"]),
        "concat": lambda: call(torch.cat, (inputs["a"], inputs["b"]), 1),
        "split": lambda: call(torch.split, inputs["x"], (axes["c1"], axes["c2"]), 1),
        "upsample_concat": joined,
        "upsample_concat_conv2d": lambda: conv(joined()),
        "batchnorm2d": norm,
        "softmax": lambda: call(
            functional.log_softmax if axes["log"] == "yes" else functional.softmax, inputs["x"], dim=-1
        ),
        "elementwise": lambda: (_arithmetic if axes["op"] in ARITHMETIC else _activation)(trace, graph, node, inputs),
        "add": lambda: call(torch.add, *inputs.values()),
        "dropout": lambda: call(functional.dropout, inputs["x"], int(axes["percent"]) / 100, training=training),
    }
    only_form = {"attention": ("layout", "qkv"), "gather": ("batches", "one")}.get(node.operator)
    if (
        node.operator not in makers
        or axes.get("training") == "yes"
        or (only_form and axes[only_form[0]] != only_form[1])
    ):
        raise UsageError(
            f"{node.name}: {node.operator}{node.problem} has no counterpart in PyTorch here; remove --compare torch",
            kind="no-counterpart",
            subject=node.name,
            value=node.operator,
        )
    out = makers[node.operator]()
    if isinstance(out, list):
        return out
    if "relu" in str(axes.get("epilogue", "")) or axes.get("op") == "add_relu":
        out = call(functional.relu, out)
    if axes.get("epilogue") == "bias_gelu_tanh":
        out = call(functional.gelu, out, approximate="tanh")
    count = len(node.outputs)
    return [out] if count == 1 else [trace.call_method("__getitem__", (out, index)) for index in range(count)]


def _activation(trace: torch.fx.Graph, graph: Graph, node: Node, inputs: Mapping[str, Call]) -> Call:
    """Add an activation; most names are PyTorch's own."""
    import torch

    functional, op = torch.nn.functional, str(node.problem.axes["op"])
    if op in ("swiglu", "geglu"):
        function = functional.silu if op == "swiglu" else functional.gelu
        return trace.call_function(torch.mul, (trace.call_function(function, (inputs["a"],)), inputs["b"]))
    if op == "gelu_tanh":
        return trace.call_function(functional.gelu, (inputs["a"],), {"approximate": "tanh"})
    return trace.call_function(getattr(functional, op, None) or getattr(torch, op), (inputs["a"],))


def _arithmetic(trace: torch.fx.Graph, graph: Graph, node: Node, inputs: Mapping[str, Call]) -> Call:
    """Add an arithmetic operation, in the values' shapes if they broadcast as in NumPy, else in the operator's."""
    import torch

    axes = node.problem.axes
    operation = getattr(torch, str(axes["op"]).removesuffix("_relu"))
    a, b = inputs["a"], inputs["b"]
    shapes = [graph.values[node.inputs[tensor]].shape for tensor in ("a", "b")]
    if len(shapes[1]) <= len(shapes[0]) and all(
        own in (1, other) for own, other in zip(reversed(shapes[1]), reversed(shapes[0]), strict=False)
    ):
        return trace.call_function(operation, (a, b))
    seen = tuple(int(axes[axis]) for axis in ("outer", "channels", "inner"))
    flat = {"none": seen, "channel": (seen[1], 1), "inner": (seen[2],), "scalar": (1,)}[str(axes["broadcast"])]
    parts = (trace.call_function(torch.reshape, (a, seen)), trace.call_function(torch.reshape, (b, flat)))
    (out,) = (graph.values[name] for name in node.outputs.values())
    return trace.call_function(torch.reshape, (trace.call_function(operation, parts), tuple(out.shape)))
