"""Compare the outputs of a whole network with its float64 reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opbench.graph.graph import Graph
from opbench.kernels.case import Case
from opbench.kernels.tensors import Arrays
from opbench.networks.records.network import OutputVerdict

ERROR_FACTOR = 4.0
"""Allowed error of the outputs: rounding errors add up as a random walk, so this factor times the root of the node
count.
"""


def allowed_norm(graph: Graph, cases: Mapping[str, Case]) -> float:
    """Return the relative tolerance, in norm, of a network's outputs, from the roundings of its nodes."""
    node_norms = [n.problem.allowance(cases[n.name].variant.precision).norm for n in graph.nodes]
    return ERROR_FACTOR * float(np.sqrt(len(node_norms))) * max(node_norms)


def check_outputs(
    graph: Graph, cases: Mapping[str, Case], outputs: Arrays, reference: Mapping[str, np.ndarray]
) -> dict[str, OutputVerdict]:
    """Compare the outputs with the float64 reference of the original network, before any pass."""
    allowed = allowed_norm(graph, cases)
    verdicts: dict[str, OutputVerdict] = {}
    for name, out in outputs.items():
        expected = reference[name]
        norm_error = float(np.linalg.norm(out - expected) / max(float(np.linalg.norm(expected)), 1e-30))
        verdicts[name] = OutputVerdict(norm_error, allowed, bool(norm_error <= allowed))
    return verdicts
