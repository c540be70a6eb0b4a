"""Split fused nodes into two nodes where two are faster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from opbench.graph.graph import Graph
from opbench.graph.passes import rebuild_graph, with_modes
from opbench.graph.values import Node
from opbench.kernels.activated_product import EXACT, ActivatedProduct
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator


@dataclass(frozen=True)
class Fusion:
    """The two problems that a fused problem combines, and how their tensors connect."""

    first: Operator
    second: Operator
    name: str
    """Last part of the first node's name, which is also that of its result; the second keeps the fused node's name."""
    inputs: Mapping[str, str]
    """For each input of the second problem, the fused problem's tensor, or "" for the first's result."""


def fused_problems(problem: Operator) -> tuple[Operator, Operator] | None:
    """Return the two problems that a fused problem combines, the first to run first; None for other problems."""
    fusion = fusion_of(problem)
    return (fusion.first, fusion.second) if fusion else None


def fusion_of(problem: Operator) -> Fusion | None:
    """Return how a fused problem is split into two; None for other problems."""
    epilogue = str(problem.axes.get("epilogue"))
    if problem.name == "conv2d" and epilogue in ("bias_add", "bias_add_relu"):
        return _fused_epilogue(problem, epilogue.removeprefix("bias_"), {"a": "", "b": "residual"})
    if isinstance(problem, ActivatedProduct) and problem.activation not in EXACT:
        return _fused_epilogue(problem, problem.activation, {"a": ""})
    return _fused_upsampling(problem) if problem.name == "upsample_concat_conv2d" else None


def _fused_epilogue(problem: Operator, op: str, inputs: Mapping[str, str]) -> Fusion:
    (out,) = problem.output_tensors()
    axes = {"op": op, "outer": 1, "channels": 1, "inner": out.elements, "dtype": out.dtype}
    following = Catalog().operator("elementwise").from_axes(axes)
    return Fusion(with_modes(problem, epilogue="bias"), following, "product", inputs)


def _fused_upsampling(problem: Operator) -> Fusion:
    axes, catalog = problem.axes, Catalog()
    common_axes = {key: axes[key] for key in ("n", "layout", "dtype")}
    image_axes = {key: axes[key] for key in ("c1", "c2", "h", "w")}
    conv_axes = {"c": int(axes["c1"]) + int(axes["c2"]), "h": 2 * int(axes["h"]), "w": 2 * int(axes["w"])}
    filters = {key: axes[key] for key in ("k", "r", "s", "padding", "epilogue")}
    convolution = catalog.operator("conv2d").from_axes({**common_axes, **conv_axes, **filters})
    inputs = {name: "" if name == "image" else name for name in convolution.inputs}
    return Fusion(
        catalog.operator("upsample_concat").from_axes({**common_axes, **image_axes}), convolution, "joined", inputs
    )


def cheaper_fusion(cost: Callable[[Operator], float | None]) -> Callable[[Operator], float | None]:
    """Return a function with the lower cost of a problem, fused or split; None if both costs are unknown."""

    def lower_cost(problem: Operator) -> float | None:
        fused_cost, part_problems = cost(problem), fused_problems(problem)
        part_costs = [cost(part) for part in part_problems] if part_problems else [None]
        known_costs = [seconds for seconds in part_costs if seconds is not None]
        if len(known_costs) < len(part_costs):
            return fused_cost
        return sum(known_costs) if fused_cost is None else min(fused_cost, sum(known_costs))

    return lower_cost


def fused_nodes(graph: Graph) -> list[str]:
    """Return the names of the fused nodes that can be split."""
    return [node.name for node in graph.nodes if fused_problems(node.problem)]


def split_name(node: Node) -> str:
    """Return the name of the first of the two nodes into which a fused node is split; "" for other nodes."""
    fusion = fusion_of(node.problem)
    return f"{node.name}.{fusion.name}" if fusion else ""


def split_fused(graph: Graph, names: Collection[str]) -> Graph:
    """Split each of these fused nodes in two; the second one keeps the name."""
    nodes, values = [], dict(graph.values)
    for node in graph.nodes:
        fusion = fusion_of(node.problem) if node.name in names else None
        if fusion is None:
            nodes.append(node)
            continue
        (out,) = fusion.first.output_tensors()
        name = split_name(node)
        values[name] = replace(graph.values[next(iter(node.outputs.values()))], name=name, shape=out.shape, of="")
        first_inputs = {tensor.name: node.inputs[tensor.name] for tensor in fusion.first.input_tensors()}
        second_inputs = {
            tensor: node.inputs[input_name] if input_name else name for tensor, input_name in fusion.inputs.items()
        }
        nodes.append(Node(name, fusion.first.name, fusion.first, first_inputs, {out.name: name}))
        nodes.append(Node(node.name, fusion.second.name, fusion.second, second_inputs, node.outputs))
    return rebuild_graph(graph, values, nodes, graph.weights)
