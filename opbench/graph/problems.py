"""Find the distinct problems of a network, from which its suite is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence

import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.graph.graph import Graph
from opbench.graph.layouts import has_image_layouts, with_layouts
from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.values import LAYOUTS
from opbench.graph.zoo import FOR_TRAINING, NETWORKS
from opbench.kernels.operator import Operator

ALLOWED_PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "f32": ("f32",),
    "tf32": ("f32", "tf32"),
    "bf16": ("f32", "tf32", "bf16"),
}
"""The precisions of products that each --precision allows; with bf16, all values are also stored in bf16."""


def network_problems(
    name: str, sizes: Mapping[str, object], precision: str, layout: str, training: bool = False
) -> list[Operator]:
    """Return the distinct problems of a network after all passes, in node order; `layout` may be "both".

    With `training`, return the problems of a training step, with the loss that fits the network's output.
    Raises UsageError with the nearest right name for an unknown network, size, precision or layout.
    """
    require_sizes(name, sizes)
    if precision not in ALLOWED_PRECISIONS:
        raise UsageError(unknown_name("precision", precision, ALLOWED_PRECISIONS))
    if layout not in (*LAYOUTS, "both"):
        raise UsageError(unknown_name("layout", layout, (*LAYOUTS, "both")))
    layouts = LAYOUTS if layout == "both" else (layout,)
    network = _without_weight_content(name, tuple(sorted(sizes.items())), training)
    if training:
        return _training_problems(network, precision, layouts)
    graph, _ = apply_passes(network)
    graph = to_dtype(graph, "bf16") if precision == "bf16" else graph
    graphs = [_in_layout(graph, layout) for layout in layouts]
    return list(dict.fromkeys(node.problem for graph in graphs for node in graph.nodes))


DATA_SET_ITEMS = 1024
"""Images in the assumed data set of a training; only the size of the gather depends on it."""


def _training_problems(network: Graph, precision: str, layouts: Sequence[str]) -> list[Operator]:
    """Return the distinct problems of a network's training step in each of the layouts."""
    (out,) = network.outputs
    loss = "cross_entropy" if len(network.values[out].shape) == 2 else "binary_cross_entropy"
    dtype = "bf16" if precision == "bf16" else "f32"
    recipes = [Recipe(loss=loss, layout=layout, dtype=dtype) for layout in layouts]
    graphs = [training_graph(network, recipe, DATA_SET_ITEMS).graph for recipe in recipes]
    return list(dict.fromkeys(node.problem for graph in graphs for node in graph.nodes))


def require_sizes(name: str, sizes: Mapping[str, object]) -> None:
    """Raise UsageError for an unknown network or size, or for a size that is not a positive integer."""
    if name not in NETWORKS:
        raise UsageError(unknown_name("network", name, NETWORKS, "opbench net list"))
    size_parameters = inspect.signature(NETWORKS[name]).parameters
    for key, value in sizes.items():
        if key not in size_parameters:
            raise UsageError(unknown_name("size", key, size_parameters, place=name))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(
                f"{name}: {key} = {value!r} is not allowed; write a whole number >= 1",
                kind="not-allowed",
                subject=key,
                value=value,
                allowed=1,
            )


@functools.cache
def _without_weight_content(name: str, sizes: tuple[tuple[str, object], ...], training: bool) -> Graph:
    """Return a network with weights of zeros that use no memory, because only shapes matter."""
    graph, zero = (FOR_TRAINING if training else NETWORKS)[name](**dict(sizes)), np.float32(0)
    return graph.with_weights({name: np.broadcast_to(zero, array.shape) for name, array in graph.weights.items()})


def _in_layout(graph: Graph, layout: str) -> Graph:
    """Return a network with all nodes that support several layouts in one layout."""
    node_names = [node.name for node in graph.nodes if has_image_layouts(node.problem)]
    return with_layouts(graph, dict.fromkeys(node_names, layout))
