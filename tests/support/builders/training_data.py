"""Small data sets and steps of training, for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.training_step import Training
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, rounded, to_storage
from opbench.networks.plan.data import DataSet


def random_data(network: Graph, items: int, loss: str = "cross_entropy", seed: int = 3) -> DataSet:
    """Normals of the network's input shape, with classes or normals of its output's shape (0 or 1 for masks)."""
    rng = np.random.default_rng(seed)
    (name,), (out,) = network.inputs, network.outputs
    shape, scores = network.values[name].shape[1:], network.values[out].shape
    images = rng.standard_normal((items, *shape), np.float32)
    if loss == "cross_entropy":
        targets = rng.integers(scores[1], size=items).astype(np.int32)
    else:
        targets = rng.standard_normal((items, *scores[1:]), np.float32)
        targets = (targets > 0).astype(np.float32) if loss == "binary_cross_entropy" else targets
    held = max(1, items // 4)
    return DataSet("random", images, targets, images[:held], targets[:held], loss=loss)


def step_of(network: Graph, recipe: Recipe, data: DataSet) -> Training:
    """One step with the data in its state."""
    training = training_graph(network, recipe, len(data.images))
    graph = training.graph
    order = np.resize(np.arange(data.items, dtype=np.int32), graph.values["order"].shape)
    given = {"data": data.images, "targets": data.targets, "order": order}
    values = graph.values
    state = {n: to_storage(array.reshape(values[n].shape), values[n].dtype) for n, array in given.items()}
    return replace(training, graph=replace(graph, state={**graph.state, **state}))


def gradients_of(training: Training, values: Arrays) -> Arrays:
    """Each parameter's gradient out of the values of a step."""
    arena = values["gradients"].reshape(-1)
    return {
        name: arena[start : start + int(np.prod(shape))].reshape(shape)
        for name, (start, shape) in training.parameters.items()
    }


def rounded_reference(graph: Graph) -> Arrays:
    """Every value of a step whose nodes compute in float64 from what is stored, and store what they find rounded."""

    def stored(problem: Operator, given: Arrays) -> Arrays:
        found = problem.evaluated(given)
        dtypes = {tensor.name: tensor.dtype for tensor in problem.output_tensors()}
        return {n: rounded(np.asarray(a), "bf16") if dtypes[n] == "bf16" else a for n, a in found.items()}

    return graph._compute_values(graph._float64_values({}), stored)
