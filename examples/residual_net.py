"""A small residual network of one's own: built in Python, planned, run and judged on this machine's CPU.

python examples/residual_net.py
"""

from __future__ import annotations

import numpy as np

import opbench
from opbench import Builder
from opbench.graph.graph import Graph
from opbench.graph.values import Value


def block(net: Builder, x: Value, channels: int, stride: int = 1) -> Value:
    """Two convolutions, added to what went in (He et al. 2016); a third fits the shapes where they change."""
    y = net.relu(net.batchnorm2d(net.conv2d(x, channels, 3, stride=stride, padding=1, bias=False)))
    y = net.batchnorm2d(net.conv2d(y, channels, 3, padding=1, bias=False))
    if y.shape != x.shape:
        x = net.batchnorm2d(net.conv2d(x, channels, 1, stride=stride, bias=False))
    return net.relu(net.elementwise("add", y, x))


def residual() -> Graph:
    """Ten classes of images of 16 x 16."""
    net = Builder("residual", seed=1)
    x = net.input("image", 2, 3, 16, 16)
    x = net.relu(net.conv2d(x, 8, 3, padding=1))
    x = block(net, block(net, x, 8), 16, stride=2)
    return net.graph(net.linear(net.flatten(net.avgpool2d(x, 8, 8)), 10))


def main() -> None:
    """Print what was fused, each node's variant, the memory, and how far the outputs are from the float64 reference."""
    graph = residual()
    images = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    with opbench.plan(graph, backend="cpu") as plan:
        print(*plan.notes, sep="\n")
        for node, case in plan.network.cases.items():
            print(f"{node:12} {case.name}")
        memory = plan.context.memory
        print(f"activations share {memory.peak_bytes:,} bytes; without sharing {memory.naive_bytes:,}")
        (classes,) = plan.run(images).values()
    (wanted,) = graph.reference_outputs({"image": images}).values()
    print(f"classes {classes.argmax(axis=1)}, off by {np.abs(classes - wanted).max():.1e} at most")


if __name__ == "__main__":
    main()
