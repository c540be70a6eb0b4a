"""Fusion where it pays: a fused node is split into two nodes if they are faster together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from opbench.graph.graph import Graph
from opbench.graph.passes import rebuild_graph
from opbench.graph.values import Node
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator


def parts(problem: Operator) -> tuple[Operator, Operator] | None:
    """Return the two problems that a fused problem combines, in order; None for one that is not a fusion of two."""
    if problem.name != "upsample_concat_conv2d":
        return None
    axes, catalog = problem.axes, Catalog()
    shared = {key: axes[key] for key in ("n", "layout", "dtype")}
    joined = {key: axes[key] for key in ("c1", "c2", "h", "w")}
    large = {"c": int(axes["c1"]) + int(axes["c2"]), "h": 2 * int(axes["h"]), "w": 2 * int(axes["w"])}
    filters = {key: axes[key] for key in ("k", "r", "s", "padding", "epilogue")}
    return (
        catalog.operator("upsample_concat").from_axes({**shared, **joined}),
        catalog.operator("conv2d").from_axes({**shared, **large, **filters}),
    )


def cheaper_fusion(cost: Callable[[Operator], float | None]) -> Callable[[Operator], float | None]:
    """Return a function that gives the lower cost of a problem fused or split; None if neither cost is known."""

    def either(problem: Operator) -> float | None:
        fused, two = cost(problem), parts(problem)
        apart = [cost(part) for part in two] if two else [None]
        known = [seconds for seconds in apart if seconds is not None]
        if len(known) < len(apart):
            return fused
        return sum(known) if fused is None else min(fused, sum(known))

    return either


def fused_nodes(graph: Graph) -> list[str]:
    """Return the names of the fused nodes, which can be split."""
    return [node.name for node in graph.nodes if parts(node.problem)]


def split_fused(graph: Graph, names: Collection[str]) -> Graph:
    """Return the network with each of these nodes split in two: NAME.joined, with a result of that name, and NAME."""
    nodes, values = [], dict(graph.values)
    for node in graph.nodes:
        two = parts(node.problem) if node.name in names else None
        if two is None:
            nodes.append(node)
            continue
        (out,) = two[0].output_tensors()
        name = f"{node.name}.joined"
        values[name] = replace(graph.values[next(iter(node.outputs.values()))], name=name, shape=out.shape, of="")
        first = {tensor.name: node.inputs[tensor.name] for tensor in two[0].input_tensors()}
        rest = {tensor: value for tensor, value in node.inputs.items() if tensor not in first}
        nodes.append(Node(name, two[0].name, two[0], first, {out.name: name}))
        nodes.append(Node(node.name, two[1].name, two[1], {"image": name, **rest}, node.outputs))
    return rebuild_graph(graph, values, nodes, graph.weights)
