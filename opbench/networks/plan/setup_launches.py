"""Setup launches in a network: they read only weights, so they run once and not for every image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.kernels.case import Case
from opbench.kernels.setup import Setup
from opbench.kernels.tensors import Tensor

PREPARE_WEIGHTS = "prepare_weights"
"""The name of this optimisation in `--disable`."""


def constants(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the tensors of a node that are weights, so that they stay constant while the network runs."""
    return tuple(name for name, value in node.inputs.items() if graph.base(value) in graph.weights)


def weight_setup(graph: Graph, node: Node, case: Case) -> Setup:
    """Return the setup launches of a node's variant if they read only weights; else an empty setup."""
    setup = case.setup
    return setup if setup.depends_only_on(constants(graph, node)) else Setup()


def workspace_of(graph: Graph, node: Node, case: Case, sm_count: int, prepare: bool = True) -> list[Tensor]:
    """Return the workspaces of a node's variant that each run fills."""
    setup_workspaces = weight_setup(graph, node, case).workspaces if prepare else ()
    return [tensor for tensor in case.workspace(sm_count) if tensor.name not in setup_workspaces]


def cases_with_weight_setup(graphs: Sequence[Graph], cases: Iterable[Case]) -> frozenset[str]:
    """Return the names of the cases whose setup launches read only weights in every node with their problem."""
    constants_of: dict[tuple[str, str], set[str]] = {}
    for graph in graphs:
        for node in graph.nodes:
            names = set(constants(graph, node))
            constants_of.setdefault((node.operator, str(node.problem)), names).intersection_update(names)
    return frozenset(
        case.name for case in cases if case.setup.depends_only_on(constants_of[case.problem.name, str(case.problem)])
    )
