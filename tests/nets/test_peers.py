"""PyTorch's form of a network: the same numbers as the float64 references, node by node refused where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbench.errors import UsageError
from opbench.graphs.build import Builder
from opbench.graphs.graph import Graph
from opbench.graphs.layouts import with_layouts
from opbench.graphs.values import Value
from opbench.graphs.zoo import NETWORKS
from opbench.nets.peers import Peer, peers, to_module

torch: Any = pytest.importorskip("torch", reason="too large for CI; run where PyTorch is: on the GPU machine")
SMALL = {"lenet": {"batch": 2}, "alexnet": {}, "unet": {"batch": 2, "size": 32, "base": 4, "levels": 2}}


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.standard_normal(graph.values[name].shape, np.float32) for name in graph.inputs}


def computed(graph: Graph, function: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.no_grad():
        found = function(*(torch.from_numpy(inputs[name]).double() for name in graph.inputs))
    return {name: out.numpy() for name, out in zip(graph.outputs, found, strict=True)}


def agrees(graph: Graph) -> None:
    inputs = inputs_of(graph)
    reference = graph.reference(inputs)
    for name, out in computed(graph, to_module(graph, "float64"), inputs).items():
        np.testing.assert_allclose(out, reference[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_a_module_computes_what_the_references_do(name: str) -> None:
    agrees(NETWORKS[name](**SMALL[name]))


def pooled(net: Builder, x: Value) -> Value:
    return net.avgpool2d(net.maxpool2d(x, 3, 2, 1), 3, 2, 1)


def inside(net: Builder, x: Value) -> Value:
    axes = {"n": 2, "c": 6, "h": 9, "w": 7, "window": 3, "stride": 2, "padding": 1, "divisor": "inside"}
    return net.node("pool", "avgpool2d", axes, {"x": x})


def fused(net: Builder, x: Value) -> Value:
    axes = {"n": 2, "c1": 6, "c2": 5, "h": 9, "w": 7}
    return net.node("up", "upsample_concat", axes, {"low": x, "skip": net.input("skip", 2, 5, 18, 14)})


def fused_convolution(net: Builder, x: Value) -> Value:
    axes = {"n": 2, "c1": 6, "c2": 5, "h": 9, "w": 7, "k": 4, "r": 3, "s": 3, "padding": 1, "epilogue": "bias_relu"}
    inputs = {"low": x, "skip": net.input("skip", 2, 5, 18, 14)}
    inputs |= {"weight": net.weight("filter", (4, 11, 3, 3), 0.1), "bias": net.weight("offset", (4,), 0.1)}
    return net.node("up", "upsample_concat_conv2d", axes, inputs)


def residual(net: Builder, x: Value) -> Value:
    out = x
    for op in ("add", "sub", "mul", "div"):
        out = net.elementwise(op, out, net.conv2d(x, 6, 1, bias=op == "add"))
    return out


BUILT = {
    "pooled": pooled,
    "inside": inside,
    "fused": fused,
    "fused_convolution": fused_convolution,
    "residual": residual,
    "bilinear": lambda net, x: net.upsample2d(x, 3, "bilinear"),
    "rows": lambda net, x: net.softmax(net.relu(net.linear(net.flatten(x), 7))),
}


@pytest.mark.parametrize("name", BUILT)
def test_every_operator_has_its_counterpart(name: str) -> None:
    net = Builder(name)
    agrees(net.graph(BUILT[name](net, net.input("x", 2, 6, 9, 7))))


def test_the_compiler_sees_a_network_whole() -> None:
    graph = NETWORKS["unet"](**SMALL["unet"])
    inputs, module = inputs_of(graph), to_module(graph, "float64")
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    plain = computed(graph, module, inputs)
    assert all(np.array_equal(plain[name], out) for name, out in computed(graph, compiled, inputs).items())


def test_weights_take_the_dtype_and_the_memory_format_asked_for() -> None:
    module = to_module(NETWORKS["lenet"](), "bfloat16", channels_last=True)
    buffers = list(module.buffers())
    assert {buffer.dtype for buffer in buffers} == {torch.bfloat16}
    assert all(b.is_contiguous(memory_format=torch.channels_last) for b in buffers if b.dim() == 4)


def test_what_pytorch_is_not_given_is_named() -> None:
    net = Builder("mine")
    x = net.input("x", 2, 6, 9, 7)
    axes = {"n": x.elements, "training": "yes"}
    with pytest.raises(UsageError, match=r"drop: dropout.* has no counterpart in PyTorch here"):
        to_module(net.graph(net.node("drop", "dropout", axes, {"x": x}, shape=x.shape)))
    with pytest.raises(UsageError, match="conv1: it works in nhwc; PyTorch is given a network as it was built"):
        to_module(with_layouts(NETWORKS["lenet"](), {"conv1": "nhwc"}))
    with pytest.raises(UsageError, match="unknown peer 'jax'"), peers(("jax",), NETWORKS["lenet"](), {}, "f32", None):
        pass


def test_facts_have_the_error_in_norm_or_say_that_it_is_unknown() -> None:
    out = np.array([1.0, 2.0, 2.0], np.float32)
    peer = Peer(lambda: None, {"out": out}, 12, {"PyTorch": "2"})
    assert peer.facts({"out": np.array([1.0, 2.0, 2.3])})["norm_error"] == pytest.approx(
        0.3 / np.sqrt(5 + 2.3**2), rel=1e-6
    )
    assert peer.facts({}) == {"peak_bytes": 12, "norm_error": None, "versions": {"PyTorch": "2"}}
