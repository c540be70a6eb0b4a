"""Convert a network to a PyTorch module of plain calls, to run eagerly or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.layouts import has_image_layouts
from opbench.graph.training import STATISTICS
from opbench.graph.values import Node
from opbench.kernels.activated_product import activation_of

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
    call_of_value = {name: trace.placeholder(_identifier(name)) for name in graph.inputs}

    def add_tensor(name: str, array: np.ndarray, *, is_trained: bool) -> Call:
        tensor = torch.from_numpy(np.array(array)).to(device, getattr(torch, dtype))  # a copy of the network's memory
        if channels_last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        if is_trained:
            root.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            root.register_buffer(name, tensor)
        return trace.get_attr(name)

    norms = [node for node in graph.nodes if node.operator == "batchnorm2d"]
    statistics = {node.inputs[part] for node in norms for part in STATISTICS}
    depthwise = {node.inputs["weight"] for node in graph.nodes if node.operator == "depthwise_conv2d"}
    for index, (name, weight) in enumerate(graph.weights.items()):
        array = weight[:, None] if name in depthwise else weight
        call_of_value[name] = add_tensor(f"weight{index}", array, is_trained=training and name not in statistics)
    mask_calls = {
        name: add_tensor(f"mask{index}", mask, is_trained=False)
        for index, (name, mask) in enumerate((masks or {}).items())
    }

    def call_for(name: str) -> Call:
        value = graph.values[name]
        if name not in call_of_value:  # a view of another value's memory
            call_of_value[name] = trace.call_function(torch.reshape, (call_for(value.of), tuple(value.shape)))
        return call_of_value[name]

    for node in graph.nodes:
        call_of_tensor = {tensor: call_for(name) for tensor, name in node.inputs.items()}
        if node.name in mask_calls:
            outputs = [trace.call_function(torch.mul, (call_of_tensor["x"], mask_calls[node.name]))]
        else:
            outputs = _add_node(trace, graph, node, call_of_tensor, training)
        call_of_value |= dict(zip(node.outputs.values(), outputs, strict=True))
    trace.output(tuple(call_for(name) for name in graph.outputs))
    trace.lint()
    return torch.fx.GraphModule(root, trace, _identifier(graph.name)).eval()


def weight_of(module: torch.fx.GraphModule, graph: Graph, name: str) -> Tensor:
    """Return the tensor of a network's weight in a module from `to_module`."""
    return getattr(module, f"weight{list(graph.weights).index(name)}")


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned[:1].isalpha() else f"n{cleaned}"


@dataclass(frozen=True)
class _NodeCalls:
    """The PyTorch calls that compute one node; each method adds the calls of an operator and returns its result."""

    trace: torch.fx.Graph
    graph: Graph
    node: Node
    inputs: Mapping[str, Call]
    training: bool
    torch: ModuleType

    @property
    def axes(self) -> Mapping[str, int | str]:
        """Return the axes and modes of the node's problem."""
        return self.node.problem.axes

    @property
    def functional(self) -> ModuleType:
        """Return torch.nn.functional."""
        module: ModuleType = self.torch.nn.functional
        return module

    def call(self, function: Callable[..., object], *args: object, **options: object) -> Call:
        """Add one call and return its result."""
        return self.trace.call_function(function, args, options)

    def _weighted(self, function: Callable[..., object], image: Call, **options: object) -> Call:
        return self.call(function, image, self.inputs["weight"], self.inputs.get("bias"), **options)

    def depthwise(self) -> Call:
        """Add a depthwise convolution."""
        geometry = {name: self.axes[name] for name in ("stride", "padding", "dilation")}
        return self._weighted(self.functional.conv2d, self.inputs["image"], groups=self.axes["c"], **geometry)

    def _conv2d_of(self, image: Call) -> Call:
        geometry = {"stride": self.axes.get("stride", 1), "padding": self.axes["padding"]}
        product = self._weighted(self.functional.conv2d, image, **geometry)
        return self.call(self.torch.add, product, self.inputs["residual"]) if "residual" in self.inputs else product

    def conv2d(self) -> Call:
        """Add a convolution, and the residual if there is one."""
        return self._conv2d_of(self.inputs["image"])

    def linear(self) -> Call:
        """Add a linear layer."""
        return self._weighted(self.functional.linear, self.inputs["x"])

    def matmul(self) -> Call:
        """Add a matrix product."""
        return self.call(self.torch.matmul, self.inputs["a"], self.inputs["b"])

    def relu(self) -> Call:
        """Add max(x, 0)."""
        return self.call(self.functional.relu, self.inputs["x"])

    def _pooling(self, function: Callable[..., object], **options: object) -> Call:
        axes = self.axes
        return self.call(function, self.inputs["x"], axes["window"], axes["stride"], axes["padding"], **options)

    def max_pooling(self) -> Call:
        """Add a max pooling."""
        return self._pooling(self.functional.max_pool2d)

    def average_pooling(self) -> Call:
        """Add an average pooling."""
        return self._pooling(self.functional.avg_pool2d, count_include_pad=self.axes["divisor"] == "window")

    def _upsampled(self, x: Call, scale: int | str, mode: int | str) -> Call:
        corners = {"align_corners": False} if mode == "bilinear" else {}
        return self.call(self.functional.interpolate, x, scale_factor=scale, mode=mode, **corners)

    def upsampling(self) -> Call:
        """Add an upsampling."""
        return self._upsampled(self.inputs["x"], self.axes["scale"], self.axes["mode"])

    def upsampled_concat(self) -> Call:
        """Add a concatenation of the skip connection and the doubled small image."""
        return self.call(self.torch.cat, (self.inputs["skip"], self._upsampled(self.inputs["low"], 2, "nearest")), 1)

    def upsampled_concat_conv2d(self) -> Call:
        """Add `upsampled_concat`, then a convolution."""
        return self._conv2d_of(self.upsampled_concat())

    def concat(self) -> Call:
        """Add a concatenation along the channels."""
        return self.call(self.torch.cat, (self.inputs["a"], self.inputs["b"]), 1)

    def split(self) -> Call:
        """Add a split along the channels."""
        return self.call(self.torch.split, self.inputs["x"], (self.axes["c1"], self.axes["c2"]), 1)

    def batch_norm(self) -> Call:
        """Add a batch norm."""
        inputs = self.inputs
        options = {"weight": inputs["scale"], "bias": inputs["shift"], "training": self.training, "eps": EPSILON}
        return self.call(self.functional.batch_norm, inputs["x"], inputs["mean"], inputs["variance"], **options)

    def layer_norm(self) -> list[Call | None]:
        """Add a layer norm, of the sum with the residual if there is one; the outputs mean and rstd are None."""
        inputs = self.inputs
        total = self.call(self.torch.add, inputs["x"], inputs["residual"]) if "residual" in inputs else inputs["x"]
        shape = (self.axes["cols"],)
        out = self.call(self.functional.layer_norm, total, shape, inputs["weight"], inputs["bias"], EPSILON)
        return [
            out,
            None,
            None,
            *([total] if "residual" in inputs else []),
        ]  # in PyTorch no later call reads mean and rstd

    def group_norm(self) -> list[Call | None]:
        """Add a group norm, with SiLU if the node has it; the outputs mean and rstd are None."""
        parameters = (self.axes["groups"], self.inputs["weight"], self.inputs["bias"], EPSILON)
        out = self.call(self.functional.group_norm, self.inputs["x"], *parameters)
        return [self.call(self.functional.silu, out) if self.axes["activation"] == "silu" else out, None, None]

    def attention(self) -> Call:
        """Add attention on packed queries, keys and values."""
        torch, call = self.torch, self.call
        batch, tokens, heads, depth = (int(self.axes[name]) for name in ("batch", "queries", "heads", "depth"))
        packed = call(torch.reshape, self.inputs["qkv"], (batch, tokens, 3, heads, depth))
        operands = [call(torch.transpose, call(torch.select, packed, 2, index), 1, 2) for index in range(3)]
        is_causal = self.axes["mask"] == "causal"
        out = call(self.functional.scaled_dot_product_attention, *operands, is_causal=is_causal)
        return call(torch.reshape, call(torch.transpose, out, 1, 2), (batch * tokens, heads * depth))

    def gather(self) -> Call:
        """Add a selection of rows."""
        order = self.call(self.torch.reshape, self.inputs["order"], (self.axes["rows"],))
        return self.call(self.torch.index_select, self.inputs["data"], 0, order)

    def layout_conversion(self) -> Call:
        """Add a conversion between nchw and nhwc."""
        permutation = (0, 2, 3, 1) if self.axes["to"] == "nhwc" else (0, 3, 1, 2)
        return self.call(self.torch.permute, self.inputs["x"], permutation)

    def softmax(self) -> Call:
        """Add a softmax, or its logarithm."""
        function = self.functional.log_softmax if self.axes["log"] == "yes" else self.functional.softmax
        return self.call(function, self.inputs["x"], dim=-1)

    def elementwise(self) -> Call:
        """Add an arithmetic operation or an activation."""
        add_calls = _arithmetic if self.axes["op"] in ARITHMETIC else _activation
        return add_calls(self.trace, self.graph, self.node, self.inputs)

    def add(self) -> Call:
        """Add the sum of two tensors."""
        return self.call(self.torch.add, *self.inputs.values())

    def dropout(self) -> Call:
        """Add a dropout."""
        share = int(self.axes["percent"]) / 100
        return self.call(self.functional.dropout, self.inputs["x"], share, training=self.training)

    def outputs_of(self, result: Call) -> list[Call | None]:
        """Add the epilogue of the node to its result; return one call for each output."""
        activation = "relu" if self.axes.get("op") == "add_relu" else activation_of(str(self.axes.get("epilogue", "")))
        if activation == "gelu_tanh":
            result = self.call(self.functional.gelu, result, approximate="tanh")
        elif activation in ("relu", "hardswish", "hardsigmoid"):
            result = self.call(getattr(self.functional, activation), result)
        count = len(self.node.outputs)
        if count == 1:
            return [result]
        return [self.trace.call_method("__getitem__", (result, index)) for index in range(count)]


CALLS: Mapping[str, Callable[[_NodeCalls], Call | list[Call | None]]] = {
    "add": _NodeCalls.add,
    "attention": _NodeCalls.attention,
    "avgpool2d": _NodeCalls.average_pooling,
    "batchnorm2d": _NodeCalls.batch_norm,
    "concat": _NodeCalls.concat,
    "conv2d": _NodeCalls.conv2d,
    "depthwise_conv2d": _NodeCalls.depthwise,
    "dropout": _NodeCalls.dropout,
    "elementwise": _NodeCalls.elementwise,
    "gather": _NodeCalls.gather,
    "groupnorm": _NodeCalls.group_norm,
    "layernorm": _NodeCalls.layer_norm,
    "layout2d": _NodeCalls.layout_conversion,
    "linear": _NodeCalls.linear,
    "matmul": _NodeCalls.matmul,
    "maxpool2d": _NodeCalls.max_pooling,
    "relu": _NodeCalls.relu,
    "softmax": _NodeCalls.softmax,
    "split": _NodeCalls.split,
    "upsample2d": _NodeCalls.upsampling,
    "upsample_concat": _NodeCalls.upsampled_concat,
    "upsample_concat_conv2d": _NodeCalls.upsampled_concat_conv2d,
}
"""The method that adds the calls of a node, by its operator."""
REQUIRED_MODE = {"attention": ("layout", "qkv"), "gather": ("batches", "one")}
"""For an operator with a counterpart in only one mode: the axis and the value that the axis must have."""


def _add_node(
    trace: torch.fx.Graph, graph: Graph, node: Node, inputs: Mapping[str, Call], training: bool
) -> list[Call | None]:
    """Add the calls that compute a node; return its outputs in the order of its problem.

    Raises UsageError for a node in nhwc, and for one without a counterpart in PyTorch.
    """
    import torch

    axes = node.problem.axes
    if has_image_layouts(node.problem) and axes["layout"] != "nchw":
        raise UsageError(
            f"{node.name}: this node works in {axes['layout']}, and opbench can give PyTorch only networks in nchw; "
            "add --layout nchw, or remove --compare torch",
            kind="other-layout",
            subject=node.name,
            value=axes["layout"],
            allowed="nchw",
        )
    add_calls = CALLS.get(node.operator)
    axis, value = REQUIRED_MODE.get(node.operator, ("", ""))
    if add_calls is None or axes.get("training") == "yes" or axes.get(axis, "") != value:
        raise UsageError(
            f"{node.name}: opbench knows no PyTorch function for {node.operator}{node.problem}; remove --compare torch",
            kind="no-counterpart",
            subject=node.name,
            value=node.operator,
        )
    calls = _NodeCalls(trace, graph, node, inputs, training, torch)
    result = add_calls(calls)
    return result if isinstance(result, list) else calls.outputs_of(result)


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
        size in (1, target_size) for size, target_size in zip(reversed(shapes[1]), reversed(shapes[0]), strict=False)
    ):
        return trace.call_function(operation, (a, b))
    operator_shape = tuple(int(axes[axis]) for axis in ("outer", "channels", "inner"))
    broadcast_shape = {
        "none": operator_shape,
        "channel": (operator_shape[1], 1),
        "inner": (operator_shape[2],),
        "scalar": (1,),
    }[str(axes["broadcast"])]
    operands = (
        trace.call_function(torch.reshape, (a, operator_shape)),
        trace.call_function(torch.reshape, (b, broadcast_shape)),
    )
    (out,) = (graph.values[name] for name in node.outputs.values())
    return trace.call_function(torch.reshape, (trace.call_function(operation, operands), tuple(out.shape)))
