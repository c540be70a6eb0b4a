"""Graph passes: each is a pure function that rewrites a network and reports its changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator

Pass = Callable[[Graph], tuple[Graph, list[str]]]
Change = tuple[Graph, str]
"""A rewritten network, and one sentence on the change."""


def on_each_node(rewrite: Callable[..., Change | None], **options: object) -> Pass:
    """Return the pass that calls `rewrite` with a network and each of its nodes in turn; None stands for no change."""

    def apply(graph: Graph) -> tuple[Graph, list[str]]:
        changes = []
        for node in graph.nodes:
            if change := rewrite(graph, node, **options):
                graph, sentence = change
                changes.append(sentence)
        return graph, changes

    return apply


def fuse(
    graph: Graph,
    dropped: Node,
    fused: Node,
    values: Iterable[Value] = (),
    weights: Mapping[str, np.ndarray] | None = None,
) -> Change:
    """Replace two nodes of a network by a fused one, which has the name of the node that is not dropped."""
    rewritten = edit_graph(graph, drop=[dropped.name], nodes={fused.name: fused}, values=values, weights=weights)
    return rewritten, f"{dropped.name}: fused into {fused.name}"


@dataclass(frozen=True)
class Rewrite:
    """A pass or a choice of layouts: whether it was applied to the network, and what it changed."""

    name: str
    on: bool
    notes: tuple[str, ...]
    """One sentence for each change of the transformation."""


EPSILON = 1e-5
"""The constant that batchnorm2d adds to the variance."""


def drop_dropout(graph: Graph, dropout: Node) -> Change | None:
    """Remove dropout, which is the identity at inference."""
    node = graph.node(dropout.name)  # its input may be another name after a dropout before it
    if node.operator != "dropout" or node.problem.axes.get("training") == "yes":
        return None
    (input_name,), (output,) = node.inputs.values(), node.outputs.values()
    rewritten = edit_graph(graph, drop=[node.name], views={output: input_name})
    return rewritten, f"{node.name}: left out, as dropout is the identity at inference"


def fold_batchnorm(graph: Graph, norm: Node) -> Change | None:
    """Fold a batch norm into the weights and bias of the convolution before it.

    The convolution, maybe a depthwise one, must have no other reader. The new weights are computed in float64
    and stored in float32.
    """
    if norm.operator != "batchnorm2d":
        return None
    conv = sole_producer(graph, norm, "x", ("conv2d", "depthwise_conv2d"))
    if conv is None or conv.problem.axes["epilogue"] not in ("none", "bias"):
        return None
    norm_weights = [norm.inputs[part] for part in ("scale", "shift", "mean", "variance")]
    conv_weights = [conv.inputs[part] for part in ("weight", "bias") if part in conv.inputs]
    if not all(name in graph.weights for name in (*norm_weights, *conv_weights)):
        return None
    scale, shift, mean, variance = (graph.weights[name].astype(np.float64) for name in norm_weights)
    factor = scale / np.sqrt(variance + EPSILON)
    weight = graph.weights[conv.inputs["weight"]].astype(np.float64)
    weight *= factor.reshape(-1, *(1,) * (weight.ndim - 1))
    bias = graph.weights[conv.inputs["bias"]].astype(np.float64) if "bias" in conv.inputs else 0.0
    epilogue = "bias_relu" if norm.problem.axes["epilogue"] == "relu" else "bias"
    names = {part: f"{conv.name}.{part}.folded" for part in ("weight", "bias")}
    fused = replace(
        conv,
        problem=with_modes(conv.problem, epilogue=epilogue),
        inputs={**conv.inputs, **names},
        outputs=norm.outputs,
    )
    weights = {names["weight"]: weight, names["bias"]: shift + (bias - mean) * factor}
    values = [
        replace(graph.values[conv.inputs["weight"]], name=names["weight"]),
        replace(graph.values[norm_weights[0]], name=names["bias"]),
    ]
    rewritten = edit_graph(graph, drop=[norm.name], nodes={conv.name: fused}, values=values, weights=weights)
    return rewritten, f"{norm.name}: folded into the weights of {conv.name}"


PRODUCT_MODES = dict.fromkeys(("conv2d", "depthwise_conv2d", "linear"), ("epilogue", ("none", "bias"), "bias_"))
RELU_MODES = {**PRODUCT_MODES, "batchnorm2d": ("epilogue", ("none",), ""), "elementwise": ("op", ("add",), "add_")}
"""For an operator that an activation is fused into: the mode, its values without one, and the prefix of the new one."""


def fuse_activation(
    graph: Graph,
    follower: Node,
    activations: Collection[str],
    modes: Mapping[str, tuple[str, tuple[str, ...], str]],
) -> Change | None:
    """Fuse one of these activations into the node before it, which must have no other reader."""
    activation = "relu" if follower.operator == "relu" else str(follower.problem.axes.get("op"))
    if activation not in activations or follower.operator not in ("relu", "elementwise"):
        return None
    producer = sole_producer(graph, follower, next(iter(follower.inputs)), tuple(modes))
    if producer is None:
        return None
    mode, values_before, prefix = modes[producer.operator]
    fused = f"{prefix}{activation}"
    if producer.problem.axes[mode] not in values_before or fused not in producer.problem.choices[mode]:
        return None
    ((tensor, producer_output),), (output,) = producer.outputs.items(), follower.outputs.values()
    if graph.values[output].shape != graph.values[producer_output].shape:
        return None
    inputs, values, weights = dict(producer.inputs), [], {}
    if producer.operator in PRODUCT_MODES and "bias" not in inputs:
        # No epilogue has an activation without a bias. A bias of zeros only changes the sign of zeros.
        inputs["bias"] = f"{producer.name}.bias.zero"
        channels = int(producer.problem.scope[{"conv2d": "k", "linear": "n"}.get(producer.operator, "c")])
        weights[inputs["bias"]] = np.zeros(channels, np.float32)
        values.append(Value(inputs["bias"], (channels,), producer.problem.storage))
    problem = with_modes(producer.problem, **{mode: fused})
    node = replace(producer, problem=problem, inputs=inputs, outputs={tensor: output})
    return fuse(graph, follower, node, values=values, weights=weights)


def fuse_residual(graph: Graph, total: Node) -> Change | None:
    """Fuse the sum at the end of a residual block, and its ReLU, into a convolution without other readers."""
    axes = total.problem.axes
    if total.operator != "elementwise" or axes["op"] not in ("add", "add_relu") or axes["broadcast"] != "none":
        return None
    for tensor, other in (("a", "b"), ("b", "a")):
        conv, residual = sole_producer(graph, total, tensor, ("conv2d",)), total.inputs[other]
        (out,) = total.outputs.values()
        if conv is None or conv.problem.axes["epilogue"] != "bias" or residual in conv.outputs.values():
            continue
        if len({graph.values[name].shape for name in (out, residual, *conv.outputs.values())}) > 1:
            continue
        problem = with_modes(conv.problem, epilogue=f"bias_{axes['op']}")
        inputs = {**conv.inputs, "residual": residual}
        node = replace(conv, problem=problem, inputs=inputs, outputs={"out": out})
        return fuse(graph, total, node)
    return None


def fuse_sum_into_norm(graph: Graph, norm: Node, *, read_again: bool = False) -> Change | None:
    """Fuse a sum into the layer norm that reads it, which then also writes the sum for other readers.

    With `read_again`, only a sum that has other readers: in training, the gradient of the fused node needs
    theirs.
    """
    if norm.operator != "layernorm" or norm.problem.axes["residual"] != "none":
        return None
    x = norm.inputs["x"]
    if read_again and len(graph.consumers(x)) < 2:
        return None
    total = next((n for n in graph.nodes if x in n.outputs.values() and n.operator == "elementwise"), None)
    if total is None or (total.problem.axes["op"], total.problem.axes["broadcast"]) != ("add", "none"):
        return None
    if len({graph.values[name].shape for name in (x, *total.inputs.values())}) > 1:
        return None
    problem = with_modes(norm.problem, residual="add")
    inputs = {**norm.inputs, "x": total.inputs["a"], "residual": total.inputs["b"]}
    node = replace(norm, problem=problem, inputs=inputs, outputs={**norm.outputs, "sum": x})
    return fuse(graph, total, node)


def fuse_upsample_concat(graph: Graph, concat: Node) -> Change | None:
    """Fuse an upsampling into the concatenation that reads it, so that the upsampled image is not stored."""
    if concat.operator != "concat":
        return None
    upsampling = sole_producer(graph, concat, "b", ("upsample2d",))
    if upsampling is None or (upsampling.problem.axes["scale"], upsampling.problem.axes["mode"]) != (2, "nearest"):
        return None
    if concat.inputs["a"] == concat.inputs["b"]:
        return None
    small, large = upsampling.problem.axes, concat.problem.axes
    axes: dict[str, int | str] = {key: small[key] for key in ("n", "h", "w", "layout", "dtype") if key in small}
    problem = Catalog().operator("upsample_concat").from_axes({**axes, "c1": small["c"], "c2": large["c1"]})
    inputs = {"low": upsampling.inputs["x"], "skip": concat.inputs["a"]}
    node = Node(concat.name, "upsample_concat", problem, inputs, concat.outputs)
    return fuse(graph, upsampling, node)


def fuse_upsample_concat_conv(graph: Graph, conv: Node) -> Change | None:
    """Fuse an upsampling and concatenation into the convolution that reads it, so that the image is not stored.

    The stride must be 1 and the padding must keep the size. The concatenated image is often a network's largest
    tensor.
    """
    if conv.operator != "conv2d":
        return None
    concatenation = sole_producer(graph, conv, "image", ("upsample_concat",))
    axes = conv.problem.axes
    keeps_size = axes["stride"] == 1 and axes["r"] == axes["s"] == 2 * int(axes["padding"]) + 1
    if concatenation is None or not keeps_size or axes["layout"] != concatenation.problem.axes["layout"]:
        return None
    operator = Catalog().operator("upsample_concat_conv2d")
    if axes["epilogue"] not in operator.choices["epilogue"]:
        return None
    conv_axes = {key: axes[key] for key in ("k", "r", "s", "padding", "epilogue")}
    problem = operator.from_axes({**concatenation.problem.axes, **conv_axes})
    inputs = {**concatenation.inputs, **{tensor: name for tensor, name in conv.inputs.items() if tensor != "image"}}
    node = Node(conv.name, "upsample_concat_conv2d", problem, inputs, conv.outputs)
    return fuse(graph, concatenation, node)


PASSES: dict[str, Pass] = {
    "drop_dropout": on_each_node(drop_dropout),
    "fold_batchnorm": on_each_node(fold_batchnorm),
    "fuse_relu": on_each_node(fuse_activation, activations=("relu",), modes=RELU_MODES),
    "fuse_gelu": on_each_node(fuse_activation, activations=("gelu_tanh",), modes=PRODUCT_MODES),
    "fuse_hardswish": on_each_node(fuse_activation, activations=("hardswish", "hardsigmoid"), modes=PRODUCT_MODES),
    "fuse_residual": on_each_node(fuse_residual),
    "fuse_sum_into_norm": on_each_node(fuse_sum_into_norm),
    "fuse_upsample_concat": on_each_node(fuse_upsample_concat),
    "fuse_upsample_concat_conv": on_each_node(fuse_upsample_concat_conv),
}
"""Passes that change results only by rounding, in the order that fuses most."""


def apply_passes(graph: Graph) -> tuple[Graph, list[str]]:
    """Apply all passes to a network; return the network and the changes."""
    graph, rewrites = rewrite_graph(graph, PASSES)
    return graph, [note for rewrite in rewrites for note in rewrite.notes]


def rewrite_graph(
    graph: Graph, passes: Mapping[str, Pass], without: Collection[str] = (), planned: Collection[str] = ()
) -> tuple[Graph, list[Rewrite]]:
    """Apply the passes that are not in `without`; return the graph and the changes of each pass.

    A pass that would remove a node in `planned` is not applied: the plan with this node is older than the pass.
    """
    rewrites = []
    for name, apply in passes.items():
        is_applied, notes = name not in without, list[str]()
        if is_applied:
            rewritten, notes = apply(graph)
            removed = {node.name for node in graph.nodes} - {node.name for node in rewritten.nodes}
            if removed_and_planned := sorted(removed.intersection(planned)):
                is_applied = False
                notes = [f"not applied, because the plan has a variant for {removed_and_planned[0]}"]
            else:
                graph = rewritten
        rewrites.append(Rewrite(name, is_applied, tuple(notes)))
    return graph, rewrites


def to_dtype(graph: Graph, dtype: str, keep: Collection[str] = ()) -> Graph:
    """Return the network with every node in `dtype`, except those in `keep`; values get the dtype of their nodes.

    Weights stay float32 here and are rounded when they are stored. Raises UsageError for a node whose operator
    does not support the dtype, and for a value that two nodes use in different dtypes.
    """
    nodes = []
    dtypes: dict[str, str] = {}
    for old_node in graph.nodes:
        node = old_node
        if node.name not in keep:
            if dtype not in node.problem.choices.get("dtype", ("f32",)):
                raise UsageError(
                    f"{node.name}: {node.operator} has no {dtype} implementation; enable the passes that fuse this "
                    f"node into another one ({', '.join(PASSES)}), or use f32",
                    kind="other-dtype",
                    subject=node.name,
                    value=dtype,
                )
            node = replace(node, problem=with_modes(node.problem, dtype=dtype))
        for tensor, name in node.tensors():
            if dtypes.setdefault(graph.base(name), tensor.dtype) != tensor.dtype:
                raise UsageError(
                    f"{node.name}: this node has '{name}' in {tensor.dtype}, and another node has '{name}' in "
                    f"{dtypes[graph.base(name)]}; give each node a separate value, or use f32",
                    kind="mixed-dtypes",
                    subject=name,
                    value=tensor.dtype,
                    allowed=dtypes[graph.base(name)],
                )
        nodes.append(node)
    values = {
        name: replace(value, dtype=dtypes.get(graph.base(name), dtype if value.dtype == "f32" else value.dtype))
        for name, value in graph.values.items()
    }
    return replace(graph, values=values, nodes=tuple(nodes))


# Parts ------------------------------------------------------------------------------------------------------------


def with_modes(problem: Operator, **modes: object) -> Operator:
    """Return the problem with some modes changed; modes that the problem lacks are ignored."""
    fields = {field.name for field in dataclasses.fields(problem)}
    return replace(problem, **{name: value for name, value in modes.items() if name in fields})


def sole_producer(graph: Graph, node: Node, tensor: str, operators: tuple[str, ...]) -> Node | None:
    """Return the node, of one of these operators, whose result only `node` reads as `tensor`; None without one.

    A result with a view does not count.
    """
    value = node.inputs.get(tensor, "")
    producer = next((n for n in graph.nodes if value in n.outputs.values() and n.operator in operators), None)
    is_read_elsewhere = any(graph.base(name) == value for name in graph.outputs) or len(graph.consumers(value)) != 1
    return None if producer is None or is_read_elsewhere else producer


def edit_graph(
    graph: Graph,
    drop: Collection[str] = (),
    nodes: Mapping[str, Node] | None = None,
    values: Iterable[Value] = (),
    weights: Mapping[str, np.ndarray] | None = None,
    views: Mapping[str, str] | None = None,
) -> Graph:
    """Return the network with some nodes removed (`drop`) or replaced, and with changed values and weights.

    `views` maps each value that no node produces any more to the value that replaces it. A network output keeps its
    name, as a view of the replacement; any other value is replaced wherever it is read. Values and weights without a
    use are removed.
    """
    new_nodes = nodes or {}
    all_values = dict(graph.values) | {value.name: value for value in values}
    replacements = {}
    for name, replacement in (views or {}).items():
        if name in graph.outputs or all_values[name].shape != all_values[replacement].shape:
            all_values[name] = replace(all_values[name], of=replacement)
        else:
            replacements[name] = replacement
    all_values = {
        n: replace(v, of=replacements[v.of]) if v.of in replacements else v
        for n, v in all_values.items()
        if n not in replacements
    }
    remaining = []
    for node in graph.nodes:
        if node.name not in drop:
            new_node = new_nodes.get(node.name, node)
            if not replacements.keys().isdisjoint(new_node.inputs.values()):
                new_node = replace(new_node, inputs={t: replacements.get(v, v) for t, v in new_node.inputs.items()})
            remaining.append(new_node)
    all_weights = {**graph.weights, **{name: array.astype(np.float32) for name, array in (weights or {}).items()}}
    return rebuild_graph(graph, all_values, remaining, all_weights)


def rebuild_graph(
    graph: Graph, values: Mapping[str, Value], nodes: Iterable[Node], weights: Mapping[str, np.ndarray]
) -> Graph:
    """Return the network with other nodes and values, the same inputs and outputs, and nothing unused."""
    nodes = tuple(nodes)
    used: set[str] = set()
    unvisited = [*graph.inputs, *graph.outputs]
    for node in nodes:
        unvisited += [*node.inputs.values(), *node.outputs.values()]
    while unvisited:
        if (name := unvisited.pop()) and name not in used:
            used.add(name)
            unvisited += [values[name].of, values[name].updates]
    return replace(
        graph,
        values={name: value for name, value in values.items() if name in used},
        nodes=nodes,
        weights={name: array for name, array in weights.items() if name in used},
        state={name: array for name, array in graph.state.items() if name in used},
    )
