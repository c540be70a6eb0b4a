"""A training step as a graph, with the positions of its parameters and statistics, and groups of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.layouts import has_image_layouts, permuted_from, with_layouts
from opbench.graph.passes import Rewrite
from opbench.graph.recipe import Recipe
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import to_storage

ALIGNMENT = 64
"""The alignment of each parameter in its arena, in elements: 256 bytes in float32, 128 bytes in bf16."""
COUNTER, NEXT = "step", "step.next"
FACTOR, LIMIT, CLIP = "rates.factor", "gradients.limit", "clip_gradients"
"""Names of the factor for gradients, of the limit of their norm, and of the node that computes the factor."""
BF16_PARAMETERS = "parameters.bf16"
"""The copy of the parameters that nodes in bf16 read; the optimiser writes it in the pass that updates them."""


@dataclass(frozen=True)
class Exchange:
    """The buffers into which the micro-batches of a step, and the ranks, add their gradients."""

    written_state: str
    """The state that each micro-batch writes: gradients, then its batch statistics and its loss."""
    total_state: str
    """The state with the sum of all micro-batches; `written` itself if each rank has one micro-batch."""
    nodes_per_step: frozenset[str]
    """Nodes that run once per step, after the exchange; all others run for each micro-batch."""
    adding_node: str = ""
    """The node that adds a further micro-batch of this rank to the sum."""


@dataclass(frozen=True)
class Training:
    """The graph of a training step, with the positions of its parameters and statistics."""

    graph: Graph
    forward: Graph
    """The network for inference."""
    recipe: Recipe
    parameters: Mapping[str, tuple[int, tuple[int, ...]]]
    """For each parameter: first element and shape in the arenas of parameters, gradients and moments."""
    statistics: Mapping[str, tuple[str, int]]
    """For each running statistic of the network: the state that holds it, and its first element there."""
    groups: Mapping[str, str]
    """For each node: data, forward, loss, backward or optimizer."""
    rewrites: tuple[Rewrite, ...] = ()
    """Each pass, whether it was applied, and its changes."""
    exchange: Exchange | None = None
    """The exchange between micro-batches; None for a step of one micro-batch."""

    def initial_parameters(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the state of the parameters for the network's weights: one array, and its bf16 copy if nodes
        read it.
        """
        arena = self.parameter_array(weights)
        return with_bf16_copy(arena) if BF16_PARAMETERS in self.graph.state else {"parameters": arena}

    def parameter_array(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the array that holds all parameters, filled with the network's weights."""
        forward_weights = with_layouts_of(self.forward.with_weights(dict(weights)), self.recipe.layout).weights
        arena = self.graph.state["parameters"].copy()
        for name, (start, shape) in self.parameters.items():
            arena[start : start + math.prod(shape)] = forward_weights[name].reshape(-1)
        return arena

    def running_statistics(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the state with the network's running statistics."""
        states = {name: self.graph.state[name].copy() for name, _ in self.statistics.values()}
        for weight, (name, start) in self.statistics.items():
            states[name][start : start + weights[weight].size] = weights[weight]
        return states

    def weights(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the network's weights from the state of a training."""
        arena = state["parameters"].reshape(-1)
        trained = dict(
            permuted_from(name, arena[start : start + math.prod(shape)].reshape(shape), self.forward.weights)
            for name, (start, shape) in self.parameters.items()
        )
        for weight, (name, start) in self.statistics.items():
            trained[weight] = state[name][start : start + self.forward.values[weight].elements]
        # A weight that the step does not contain is a bias that a batch norm subtracts again, so it is 0.
        return {name: trained.get(name, np.zeros_like(array)) for name, array in self.forward.weights.items()}


def with_layouts_of(graph: Graph, layout: str) -> Graph:
    """Return the network with all nodes that support several layouts in one layout."""
    if layout == "nchw":
        return graph
    return with_layouts(graph, {node.name: layout for node in graph.nodes if has_image_layouts(node.problem)})


def with_bf16_copy(parameters: np.ndarray) -> dict[str, np.ndarray]:
    """Return the array of parameters and its bf16 copy, rounded as the optimiser rounds."""
    return {"parameters": parameters, BF16_PARAMETERS: to_storage(parameters, "bf16")}


def parameter_elements(parameters: Mapping[str, tuple[int, tuple[int, ...]]]) -> int:
    """Return the number of elements of the array that holds these parameters."""
    return max(round_up(start + math.prod(shape), ALIGNMENT) for start, shape in parameters.values())
