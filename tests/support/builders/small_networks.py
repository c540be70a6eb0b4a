"""A network that is small and has what most lack, and inputs for any."""

from __future__ import annotations

import numpy as np

from opbench.graph.build import Builder
from opbench.graph.graph import Graph


def pictures(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(graph.values[name].shape, np.float32) for name in graph.inputs}


def residual() -> Graph:
    """Two branches that meet, a skip around them, and two outputs."""
    net = Builder("residual")
    x = net.input("image", 2, 3, 9, 7)
    a = net.relu(net.conv2d(x, 3, 3, padding=1, name="left"))
    b = net.batchnorm2d(net.conv2d(x, 3, 1, name="right"))
    y = net.elementwise("add", net.elementwise("mul", a, b), x)
    return net.graph(net.maxpool2d(y), net.softmax(net.linear(net.flatten(y), 5)))
