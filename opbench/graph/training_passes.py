"""Graph passes for training: each is a pure function, can be disabled, and reports its changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opbench import units
from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.passes import (
    Change,
    Pass,
    edit_graph,
    fuse,
    fuse_sum_into_norm,
    on_each_node,
    sole_producer,
    with_modes,
)
from opbench.graph.values import Node


def drop_bias_before_batchnorm(graph: Graph, norm: Node) -> Change | None:
    """Remove the bias of a convolution before a batch norm, which subtracts the bias with the mean.

    The bias's gradient is only rounding error, from which Adam would make steps of full size.
    """
    if norm.operator != "batchnorm2d":
        return None
    conv = sole_producer(graph, norm, "x", ("conv2d",))
    if conv is None or conv.problem.axes["epilogue"] != "bias":
        return None
    inputs = {tensor: name for tensor, name in conv.inputs.items() if tensor != "bias"}
    node = replace(conv, problem=with_modes(conv.problem, epilogue="none"), inputs=inputs)
    rewritten = edit_graph(graph, nodes={conv.name: node})
    return rewritten, f"{conv.name}: its bias left out, as {norm.name} subtracts it with the mean"


def fuse_relu_backward(graph: Graph, relu: Node) -> Change | None:
    """Fuse the gradient of a ReLU, a mask, into the node that computes the gradient of its output.

    That node may add another gradient first.
    """
    if relu.operator != "relu_backward":
        return None
    producer = _sole_producer(graph, relu, "dout", "mask") or _sole_producer(graph, relu, "dout", "add_mask", "add")
    if producer is None or graph.values[relu.inputs["out"]].shape != _output_shape(graph, producer):
        return None
    # This gradient reads its forward node's input, which must be the ReLU's output.
    if producer.operator == "maxpool2d_backward":
        if producer.inputs["x"] != relu.inputs["out"]:
            return None
        node = _with_epilogue(producer, "mask", {}, relu.outputs["dx"])
    else:
        epilogue = "mask" if producer.problem.axes["epilogue"] == "none" else "add_mask"
        node = _with_epilogue(producer, epilogue, {"out": relu.inputs["out"]}, relu.outputs["dx"])
    return fuse(graph, relu, node)


def fuse_residual_into_batchnorm(graph: Graph, total: Node) -> Change | None:
    """Fuse the sum at the end of a residual block, and its ReLU, into a batch norm whose result only the sum reads.

    The gradients stay as they are: they read the sum, the batch norm's input and its statistics.
    """
    axes = total.problem.axes
    if total.operator != "elementwise" or axes["op"] not in ("add", "add_relu") or axes["broadcast"] != "none":
        return None
    norm, residual = _last_batchnorm(graph, total)
    if norm is None:
        return None
    problem = with_modes(norm.problem, epilogue=axes["op"])
    inputs = {**norm.inputs, "residual": residual}
    node = replace(norm, problem=problem, inputs=inputs, outputs={**norm.outputs, "out": total.outputs["out"]})
    return fuse(graph, total, node)


def _last_batchnorm(graph: Graph, total: Node) -> tuple[Node | None, str]:
    """Return the batch norm that computes the last term of a sum, and the other term, which exists before it.

    Return None and "" if another node computes the last term, or if another node reads it.
    """
    position = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs.values()}
    a, b = total.inputs["a"], total.inputs["b"]
    last, residual = (a, b) if position.get(graph.base(a), -1) > position.get(graph.base(b), -1) else (b, a)
    norm = sole_producer(graph, total, "a" if last == a else "b", ("batchnorm2d_train",))
    if norm is None or norm.outputs["out"] != last or norm.problem.axes["epilogue"] != "none":
        return None, ""
    shapes = {graph.values[name].shape for name in (last, residual, total.outputs["out"])}
    return (norm, residual) if len(shapes) == 1 else (None, "")


def fuse_gelu_backward(graph: Graph, gelu: Node) -> Change | None:
    """Fuse the derivative of a GELU (tanh form) into the node that computes the gradient of its output."""
    if gelu.operator != "elementwise" or gelu.problem.axes["op"] != "gelu_tanh_backward":
        return None
    producer = _sole_producer(graph, gelu, "b", "gelu_tanh")
    if producer is None or graph.values[gelu.inputs["a"]].shape != _output_shape(graph, producer):
        return None
    node = _with_epilogue(producer, "gelu_tanh", {"a": gelu.inputs["a"]}, gelu.outputs["out"])
    return fuse(graph, gelu, node)


def fuse_gradient_add(graph: Graph, add: Node, forward: Collection[str] = ()) -> Change | None:
    """Fuse the sum of a value's gradients into the last node that computes one, as in UNet's encoder.

    `forward` are the nodes that compute no gradient.
    """
    if add.operator != "elementwise" or add.problem.axes["op"] != "add" or add.name in forward:
        return None
    for tensor, other in (("b", "a"), ("a", "b")):
        producer = _sole_producer(graph, add, tensor, "add")
        if producer is None or add.inputs["a"] == add.inputs["b"]:
            continue
        if graph.values[add.inputs[other]].shape != _output_shape(graph, producer):
            continue
        node = _with_epilogue(producer, "add", {"skip": add.inputs[other]}, add.outputs["out"])
        return fuse(graph, add, node)
    return None


def remember_positions(graph: Graph, backward: Node) -> Change | None:
    """Let max pooling store the position of each maximum in one byte, if the gradient then reads fewer bytes.

    The gradient then reads the positions instead of the image, and derives a ReLU's mask from the maxima.
    """
    if backward.operator != "maxpool2d_backward" or backward.problem.axes["search"] != "again":
        return None
    pool = _forward_pooling(graph, backward)
    if pool is None:
        return None
    out = pool.outputs["out"]
    positions = pool.outputs.get("positions", f"{pool.name}.positions")
    inputs = {tensor: name for tensor, name in backward.inputs.items() if tensor != "x"}
    inputs |= {"positions": positions} | ({"out": out} if backward.problem.axes["epilogue"] == "mask" else {})
    try:
        writing_pool = replace(
            pool,
            problem=with_modes(pool.problem, positions="yes"),
            outputs={**pool.outputs, "positions": positions},
        )
        reading_backward = replace(backward, problem=with_modes(backward.problem, search="remembered"), inputs=inputs)
    except UsageError:  # one byte cannot hold the positions of such a large window
        return None
    saved_bytes = _total_bytes(pool, backward) - _total_bytes(writing_pool, reading_backward)
    if saved_bytes <= 0:
        return None
    value = replace(graph.values[out], name=positions, dtype="u8", of="", offset=0)
    rewritten = edit_graph(graph, nodes={pool.name: writing_pool, backward.name: reading_backward}, values=[value])
    return rewritten, (
        f"{backward.name}: reads the positions that {pool.name} writes in place of the image, "
        f"{units.si(saved_bytes, 'B')} fewer for both"
    )


def _forward_pooling(graph: Graph, backward: Node) -> Node | None:
    """Return the max pooling to which a gradient node belongs."""
    axes = {name: value for name, value in backward.problem.axes.items() if name not in ("epilogue", "search")}
    matches = (
        node
        for node in graph.nodes
        if node.operator == "maxpool2d"
        and node.inputs["x"] == backward.inputs["x"]
        and all(node.problem.axes[name] == value for name, value in axes.items())
    )
    return next(matches, None)


def _total_bytes(*nodes: Node) -> int:
    """Return the compulsory bytes of some nodes together."""
    return sum(node.problem.bytes() for node in nodes)


def _sole_producer(graph: Graph, node: Node, tensor: str, epilogue: str, present_epilogue: str = "none") -> Node | None:
    """Return the backward node whose result only `node` reads, and which can have this epilogue; None without one.

    The node's epilogue must be `present_epilogue`.
    """
    operators = ("conv2d_dgrad", "linear_dgrad", "maxpool2d_backward")
    producer = sole_producer(graph, node, tensor, operators)
    if producer is None or producer.problem.axes.get("epilogue") != present_epilogue:
        return None
    return producer if epilogue in producer.problem.choices["epilogue"] else None


def _output_shape(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the shape of a node's first output."""
    return graph.values[next(iter(node.outputs.values()))].shape


def _with_epilogue(node: Node, epilogue: str, inputs: dict[str, str], out: str) -> Node:
    """Return a backward node with an epilogue, its further inputs, and the output of the node that it replaces."""
    (tensor,) = node.outputs
    problem = with_modes(node.problem, epilogue=epilogue)
    return replace(node, problem=problem, inputs={**node.inputs, **inputs}, outputs={tensor: out})


FORWARD_PASSES: dict[str, Pass] = {
    "drop_bias_before_batchnorm": on_each_node(drop_bias_before_batchnorm),
    "fuse_sum_into_norm": on_each_node(fuse_sum_into_norm, read_again=True),
}
"""Passes before the backward pass is built."""
BACKWARD_PASSES: dict[str, Pass] = {
    "fuse_residual_into_batchnorm": on_each_node(fuse_residual_into_batchnorm),
    "fuse_gradient_add": on_each_node(fuse_gradient_add),
    "fuse_relu_backward": on_each_node(fuse_relu_backward),
    "fuse_gelu_backward": on_each_node(fuse_gelu_backward),
    "remember_positions": on_each_node(remember_positions),
}
"""Passes on the forward and backward pass together."""
TRAINING_PASSES = ("fuse_relu", "fuse_upsample_concat", *FORWARD_PASSES, *BACKWARD_PASSES)
"""All passes that a training may disable, in order."""
RECOMPUTE = "recompute"
"""The pass that a memory limit enables, when the memory use is known: see `networks.plan.recompute`."""
