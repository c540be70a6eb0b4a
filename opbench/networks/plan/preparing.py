"""What a network does once with its weights: launches that read nothing else need not run at every image."""

from __future__ import annotations

from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.kernels.case import Case
from opbench.kernels.setup import Setup
from opbench.kernels.tensors import Tensor

PREPARE = "prepare_weights"
"""What `--without` calls it."""


def constants(graph: Graph, node: Node) -> tuple[str, ...]:
    """The inputs of a node's problem that nothing writes while the network runs."""
    return tuple(name for name, value in node.inputs.items() if graph.base(value) in graph.weights)


def prepared_once(graph: Graph, node: Node, case: Case) -> Setup:
    """What a node's variant prepares from weights alone; nothing where it needs anything else for that."""
    setup = case.setup
    return setup if setup.serves(constants(graph, node)) else Setup()


def workspace_of(graph: Graph, node: Node, case: Case, sm_count: int, prepare: bool = True) -> list[Tensor]:
    """The extra buffers that a node's variant fills anew each time."""
    kept = prepared_once(graph, node, case).workspaces if prepare else ()
    return [tensor for tensor in case.workspace(sm_count) if tensor.name not in kept]
