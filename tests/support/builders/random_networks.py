"""Small random networks with branches, skip connections, several inputs and several outputs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.values import Value
from opbench.kernels.tensors import Arrays

STEPS = (
    "conv2d",
    "conv2d_bias",
    "relu",
    "batchnorm2d",
    "maxpool2d",
    "avgpool2d",
    "upsample2d",
    "dropout",
    "concat",
    "add",
)
STEPS += ("upsample_concat", "scale", "depthwise_conv2d", "scale_each_image")


def step(net: Builder, kind: str, x: Value, images: list[Value], k: int) -> Value | None:
    """One more node after x; None where this kind does not fit."""
    _, c, h, w = x.image
    alike = [v for v in images if v.image[2:] == (h, w)]
    larger = [v for v in images if v.image[2:] == (2 * h, 2 * w)]
    match kind:
        case "conv2d" | "conv2d_bias":
            r = min(3, h, w)
            return net.conv2d(x, k, r, padding=r // 2, bias=kind == "conv2d_bias")
        case "depthwise_conv2d":
            r = min(3, h, w)
            return net.depthwise_conv2d(x, r, stride=k % 2 + 1, padding=r // 2, bias=k > 2)
        case "relu":
            return net.relu(x)
        case "batchnorm2d":
            return net.batchnorm2d(x)
        case "dropout":
            return net.dropout(x)
        case "maxpool2d" | "avgpool2d" if h > 1 and w > 1:
            return getattr(net, kind)(x)
        case "upsample2d" if h < 8 and w < 8:
            return net.upsample2d(x)
        case "concat":
            return net.concat(x, alike[k % len(alike)])
        case "upsample_concat" if larger and h < 8:
            return net.concat(larger[k % len(larger)], net.upsample2d(x))
        case "add":
            same = [v for v in images if v.shape == x.shape]
            return net.elementwise("add", x, same[k % len(same)])
        case "scale":
            return net.elementwise("mul", x, net.weight(f"factor of {x.name} {len(images)}", (1, c, 1, 1), 1.0))
        case "scale_each_image" if h == w:
            return net.elementwise("mul", x, net.avgpool2d(x, h, 1))
    return None


@st.composite
def networks(draw: st.DrawFn, most: int = 10) -> Graph:
    """A network of up to `most` nodes that work on images, maybe with a linear layer or a softmax behind."""
    net = Builder("random", seed=draw(st.integers(0, 3)))
    n, c, size = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4, 5]))
    images = [net.input("image", n, c, size, size)]
    if draw(st.booleans()):
        images.append(net.input("other", n, c, size, size + draw(st.integers(0, 1))))
    for _ in range(draw(st.integers(1, most))):
        x = images[draw(st.integers(max(0, len(images) - 3), len(images) - 1))]
        made = step(net, draw(st.sampled_from(STEPS)), x, images, draw(st.integers(1, 4)))
        images += [made] if made else []
    outputs = [images[i] for i in draw(st.lists(st.integers(0, len(images) - 1), max_size=2, unique=True))]
    rows = net.flatten(images[-1])
    match draw(st.sampled_from(["image", "linear", "relu", "softmax", "both"])):
        case "image":
            outputs.append(images[-1])
        case "linear":
            outputs.append(net.relu(net.linear(net.dropout(rows), 3)))
        case "relu":
            outputs.append(net.linear(net.relu(rows), 3))
        case "softmax":
            outputs.append(net.softmax(rows))
        case "both":
            outputs += [net.linear(rows, 2), net.softmax(rows), rows]
    return net.graph(*{value.name: value for value in outputs}.values())


def inputs_of(graph: Graph, seed: int = 0) -> Arrays:
    """Normal numbers for every input, or indices."""
    return graph.make_inputs(seed)


def assert_same_outputs(graph: Graph, other: Graph, rounding: float = 0.0) -> None:
    """Both give the same outputs by name, up to rounding relative to the largest number."""
    assert (graph.inputs, graph.outputs) == (other.inputs, other.outputs)
    inputs = inputs_of(graph)
    left, right = graph.reference(inputs), other.reference(inputs)
    for name in graph.outputs:
        scale = float(np.abs(left[name]).max()) if rounding else 0.0
        np.testing.assert_allclose(right[name], left[name], rtol=0, atol=rounding * scale + 1e-12, err_msg=name)
