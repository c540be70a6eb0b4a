"""One step of training as a graph, with where in it is what: parameters, statistics, what its nodes are for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.layouts import permuted_from, with_layouts
from opbench.graph.recipe import Recipe
from opbench.kernels.tensors import to_storage

ALIGNMENT = 64
"""Elements: each parameter begins at a multiple of 256 bytes of its arena, in bf16 of 128: vectors stay aligned."""
COUNTER, NEXT = "step", "step.next"
FACTOR, LIMIT, CLIP = "rates.factor", "gradients.limit", "clip_gradients"
"""What the optimiser multiplies gradients by, the most that their norm may be, and the node that finds the one so."""
STORED = "parameters.bf16"
"""The copy of the parameters that nodes in bf16 read; the optimiser writes it in the pass that updates them."""


@dataclass(frozen=True)
class Exchange:
    """Where the micro-batches of a step come together."""

    written: str
    """The state that each micro-batch writes: gradients, then its batch statistics and its loss."""
    total: str
    """The state that holds their sum, which what is done once a step reads; on one micro-batch a rank the same."""
    once: frozenset[str]
    """Nodes that run once a step, behind it; all others do for each micro-batch."""
    adds: str = ""
    """The node that adds a further micro-batch of this rank to the sum."""


@dataclass(frozen=True)
class Training:
    """One step as a graph, and where in it is what."""

    graph: Graph
    forward: Graph
    """The network itself, as it infers."""
    recipe: Recipe
    parameters: Mapping[str, tuple[int, tuple[int, ...]]]
    """Of each parameter, in its layout, first element and shape in the arenas of parameters, gradients and moments."""
    statistics: Mapping[str, tuple[str, int]]
    """Running statistics: name of the network's weight to the state that holds it and its first element there."""
    groups: Mapping[str, str]
    """Of each node: data, forward, loss, backward or optimizer."""
    said: tuple[tuple[str, bool, tuple[str, ...]], ...] = ()
    """Each pass, whether it was on, and what it did."""
    exchange: Exchange | None = None
    """Where micro-batches come together; None for a step of one."""

    def given_parameters(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state that the network's weights are: their arena, and its copy where nodes read one."""
        arena = self.arena(weights)
        return with_copy(arena) if STORED in self.graph.state else {"parameters": arena}

    def arena(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """The arena `parameters` that holds the network's weights."""
        given = with_layouts_of(self.forward.with_weights(dict(weights)), self.recipe.layout).weights
        arena = self.graph.state["parameters"].copy()
        for name, (start, shape) in self.parameters.items():
            arena[start : start + math.prod(shape)] = given[name].reshape(-1)
        return arena

    def running(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state that the network's running statistics are."""
        found = {name: self.graph.state[name].copy() for name, _ in self.statistics.values()}
        for weight, (name, start) in self.statistics.items():
            found[name][start : start + weights[weight].size] = weights[weight]
        return found

    def weights(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The network's weights out of a state."""
        arena = state["parameters"].reshape(-1)
        found = dict(
            permuted_from(name, arena[start : start + math.prod(shape)].reshape(shape), self.forward.weights)
            for name, (start, shape) in self.parameters.items()
        )
        for weight, (name, start) in self.statistics.items():
            found[weight] = state[name][start : start + self.forward.values[weight].elements]
        # What is left out of the step is a bias that a batch norm subtracts again: it is in no running mean.
        return {name: found.get(name, np.zeros_like(array)) for name, array in self.forward.weights.items()}


def with_layouts_of(graph: Graph, layout: str) -> Graph:
    """The network with every node that has the choice in one layout."""
    if layout == "nchw":
        return graph
    return with_layouts(graph, {node.name: layout for node in graph.nodes if "layout" in node.problem.modes()})


def with_copy(parameters: np.ndarray) -> dict[str, np.ndarray]:
    """The arena of parameters, and its copy as the optimiser rounds it."""
    return {"parameters": parameters, STORED: to_storage(parameters, "bf16")}


def sum_of(parameters: Mapping[str, tuple[int, tuple[int, ...]]]) -> int:
    """Elements of the arena that holds these."""
    return max(-(-(start + math.prod(shape)) // ALIGNMENT) * ALIGNMENT for start, shape in parameters.values())
