"""Choose the layouts with the lowest total time of a network, including conversions."""

from __future__ import annotations

from collections.abc import Callable

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.layouts import (
    allowed_layouts,
    can_permute_columns,
    check_layouts,
    conversion_problem,
    has_same_order_in_both,
    is_image,
    pixel_rows,
    problem_in,
    underlying_image,
    works_on_images,
)
from opbench.graph.values import CONVERSION, Node
from opbench.kernels.operator import Operator

Cost = Callable[[Operator], float | None]
"""Seconds that a problem takes, or None where nothing can compute it."""


def choose_layouts(graph: Graph, cost: Cost) -> dict[str, str]:
    """Return the layout of each node that works on images; the sum over nodes and conversions is minimal.

    The minimum is exact: with two labels and costs of which none rewards a difference, it is a minimum s-t cut
    (Boykov, Veksler and Zabih 2001). A conversion costs once per value, however many nodes read it: between a
    value's producer and its readers there is a vertex for "any node reads nhwc" and one for "any node reads
    nchw".
    """
    import networkx

    check_layouts(graph, {})
    cut = networkx.DiGraph()
    cut.add_nodes_from(["nchw", "nhwc"])

    def add_cost(source: str, sink: str, seconds: float | None) -> None:
        """Add the cost if `source` is nchw and `sink` is nhwc; None forbids the combination.

        Costs are whole femtoseconds, so that the cut is exact.
        """
        if source == sink or seconds == 0:
            return
        edge = cut.edges[source, sink] if cut.has_edge(source, sink) else {"capacity": 0}
        if seconds is None or "capacity" not in edge:
            cut.remove_edges_from([(source, sink)])
            cut.add_edge(source, sink)
        else:
            cut.add_edge(source, sink, capacity=edge["capacity"] + round(seconds * 1e15))

    nodes = {node.name: node for node in graph.nodes if works_on_images(graph, node)}
    for node in nodes.values():
        if node.operator == CONVERSION:  # a conversion that the user built is a view of an nhwc image
            add_cost(_vertex(node), "nhwc", None)
            continue
        costs = {layout: cost(problem_in(graph, node, layout)) for layout in allowed_layouts(graph, node)}
        if all(seconds is None for seconds in costs.values()):
            raise UsageError(
                f"{node.name}: opbench cannot choose a layout, because no variant of {node.operator} has a time for "
                f"{node.problem} in nchw or nhwc; measure with --tune, or choose a layout: --layout nchw",
                kind="no-known-cost",
                subject=node.name,
                value=f"{node.operator}{node.problem}",
            )
        add_cost(_vertex(node), "nhwc", costs["nchw"])
        add_cost("nchw", _vertex(node), costs.get("nhwc"))
    for name, readers in _readers(graph).items():
        value = graph.values[name]
        if has_same_order_in_both(value):
            continue
        source = next((_vertex(node) for node in nodes.values() if name in node.outputs.values()), "nchw")
        any_nhwc, any_nchw = f"nhwc:{name}", f"nchw:{name}"
        add_cost(source, any_nhwc, cost(conversion_problem(value, "nhwc")))
        add_cost(any_nchw, source, cost(conversion_problem(value, "nchw")))
        for reader in sorted(readers):
            add_cost(any_nhwc, reader, None)
            add_cost(reader, any_nchw, None)
    try:
        _, (_, nhwc) = networkx.minimum_cut(cut, "nchw", "nhwc")
    except networkx.NetworkXUnbounded:
        raise UsageError(
            f"{graph.name}: no choice of layouts works, because a node needs a conversion between nchw and nhwc, and "
            f"no variant of {CONVERSION} can compute the conversion; choose one layout for all nodes: --layout nchw",
            kind="no-layouts",
            subject=graph.name,
        ) from None
    return {name: "nhwc" if _vertex(node) in nhwc else "nchw" for name, node in nodes.items()}


def _vertex(node: Node) -> str:
    return f"node:{node.name}"


def _readers(graph: Graph) -> dict[str, set[str]]:
    """Return, for each image, the vertices of the nodes that read it.

    The vertex is "nchw" for nodes that support no other layout.
    """
    readers: dict[str, set[str]] = {}
    flattened = pixel_rows(graph)

    def reads(name: str, vertex: str) -> None:
        if (image := underlying_image(graph, name)) and image not in flattened:
            readers.setdefault(image, set()).add(vertex)
            if base := graph.values[image].of:  # a view in another shape reads the image in nchw
                reads(base, "nchw")

    for node in graph.nodes:
        for tensor, name in node.inputs.items():
            if is_image(graph, name):
                reads(name, _vertex(node))
            elif not can_permute_columns(graph, node, tensor):
                reads(name, "nchw")
    for name in graph.outputs:
        reads(name, "nchw")
    return readers
