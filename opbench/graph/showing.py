"""A graph, or a network of one, as a notebook shows it: a line of what it is and a table of its nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from opbench import units

if TYPE_CHECKING:
    from opbench.graph.graph import Graph

MOST_NODES = 40
"""What is worth a look in passing."""

LEFT = 'style="text-align:left;overflow-wrap:anywhere"'


def title(graph: Graph) -> str:
    """Such as "lenet: 7 nodes, 61,706 weights, 833 kFLOP"."""
    weights = sum(math.prod(array.shape) for array in (*graph.weights.values(), *graph.state.values()))
    flops = sum(node.problem.flops() for node in graph.nodes)
    many = len(graph.nodes)
    return f"{graph.name}: {many} node{'s' if many != 1 else ''}, {weights:,} weights, {units.si(flops, 'FLOP')}"


def to_html(graph: Graph, about: str, variants: Mapping[str, str]) -> str:
    """Each node with its problem, what it writes and, where known, the variant that serves it; all text escaped."""
    heads = ("node", "problem", "output", *(("variant",) if variants else ()))
    rows = ""
    for node in graph.nodes[:MOST_NODES]:
        shapes = ["×".join(map(str, graph.values[name].shape)) for name in node.outputs.values()]
        cells = [node.name, f"{node.operator}{node.problem}", ", ".join(shapes)]
        cells += [variants.get(node.name, "–")] if variants else []
        rows += "<tr>" + "".join(f"<td {LEFT}>{escape(cell)}</td>" for cell in cells) + "</tr>"
    left = len(graph.nodes) - MOST_NODES
    more = f"<p>… and {left} more nodes</p>" if left > 0 else ""
    head = "".join(f"<th {LEFT}>{name}</th>" for name in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div><p><b>{escape(about)}</b></p>{table}{more}</div>"
