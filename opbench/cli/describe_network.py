"""The contents of a network in numbers, for `opbench net show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from opbench.records import JSON

if TYPE_CHECKING:
    from opbench.graph.graph import Graph
    from opbench.graph.passes import Rewrite


def describe(graph: Graph, passes: Sequence[Rewrite]) -> dict[str, JSON]:
    """Return a network's graph as JSON values: nodes, weights, FLOPs, memory, and the changes by each pass."""
    from opbench.networks.plan.memory import plan_memory

    nodes: list[dict[str, JSON]] = []
    for node in graph.nodes:
        (first_output, *_) = (graph.values[name] for name in node.outputs.values())
        weights = [graph.values[name] for name in node.inputs.values() if name in graph.weights]
        nodes.append(
            {
                "name": node.name,
                "operator": node.operator,
                "problem": str(node.problem),
                "shape": list(first_output.shape),
                "layout": first_output.layout if len(first_output.shape) == 4 else "",
                "dtype": first_output.dtype,
                "weights": sum(value.elements for value in weights),
                "flops": node.problem.flops(),
                "bytes": node.problem.bytes(),
            }
        )
    memory = plan_memory(graph)
    return {
        "network": graph.name,
        "inputs": {name: list(graph.values[name].shape) for name in graph.inputs},
        "outputs": {name: list(graph.values[name].shape) for name in graph.outputs},
        "passes": [asdict(graph_pass) for graph_pass in passes],
        "nodes": nodes,
        "weights": sum(graph.values[name].elements for name in graph.weights),
        "weights_bytes": sum(graph.values[name].nbytes for name in graph.weights),
        "flops": sum(node.problem.flops() for node in graph.nodes),
        "peak_bytes": memory.peak_bytes,
        "naive_bytes": memory.naive_bytes,
    }


def print_network_description(description: Mapping[str, Any]) -> None:
    """Print one line per node, what the passes did, and the sums."""
    from opbench import units
    from opbench.tables import align_columns

    rows = [
        (
            node["name"],
            node["operator"],
            "×".join(map(str, node["shape"])) + (f" {node['layout']}" if node["layout"] else ""),
            f"{node['weights']:,}" if node["weights"] else "",
            units.si(node["flops"], "FLOP") if node["flops"] else "",
            units.si(node["bytes"], "B"),
            node["problem"],
        )
        for node in description["nodes"]
    ]
    head = ("node", "operator", "result", "weights", "FLOPs", "bytes", "problem")
    for line in align_columns(head, rows, left=(0, 1, 2, 6)):
        click.echo(line)
    for graph_pass in description["passes"]:
        off_mark = "" if graph_pass["on"] else " (off)"
        click.echo(f"{graph_pass['name']}{off_mark}: {'; '.join(graph_pass['notes']) or 'nothing to do'}")
    click.echo(
        f"{description['network']}: {len(description['nodes'])} nodes, {description['weights']:,} weights "
        f"({units.si(description['weights_bytes'], 'B')}), {units.si(description['flops'], 'FLOP')}; activations "
        f"{units.si(description['peak_bytes'], 'B')} at the peak, "
        f"{units.si(description['naive_bytes'], 'B')} without sharing"
    )
