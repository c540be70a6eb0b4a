"""PyTorch's form of a network, and its ways made ready on a stand-in for a GPU."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes
from opbench.graph.values import Value
from opbench.graph.zoo import NETWORKS
from opbench.networks.plan import torch_comparison as module_under_test
from opbench.networks.plan.torch_comparison import TORCH_MODES, peers, require_known_libraries
from opbench.networks.plan.torch_module import to_module
from support.checks.errors import refuses, refuses_name
from support.common import CATALOG
from support.fakes.cpu_in_place_of_gpu import CpuInPlaceOfGpu

torch: Any = pytest.importorskip("torch", reason="too large for CI; run where PyTorch is: on the GPU machine")
SMALL = {
    "lenet": {"batch": 2},
    "alexnet": {},
    "unet": {"batch": 2, "size": 32, "base": 4, "levels": 2},
    "resnet18": {"batch": 2, "size": 32, "base": 4, "classes": 10},
    "resnet50": {"batch": 2, "size": 32, "base": 4, "classes": 10},
    "mobilenetv3": {"batch": 2, "size": 32, "width": 25, "classes": 10},
    "diffusion": {"batch": 2, "size": 4, "base": 32},
    "gpt2": {"batch": 2, "tokens": 16, "layers": 2, "heads": 2, "width": 32, "vocabulary": 50},
}


def inputs_of(graph: Graph, seed: int = 5) -> dict[str, np.ndarray]:
    return graph.make_inputs(seed)


def computed(graph: Graph, function: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.no_grad():
        tensors = [torch.from_numpy(inputs[name]) for name in graph.inputs]
        found = function(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors))
    return {name: out.numpy() for name, out in zip(graph.outputs, found, strict=True)}


def agrees(graph: Graph) -> None:
    inputs = inputs_of(graph)
    reference = graph.reference(inputs)
    for name, out in computed(graph, to_module(graph, "float64"), inputs).items():
        np.testing.assert_allclose(out, reference[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_a_module_computes_what_the_references_do(name: str) -> None:
    graph = NETWORKS[name](**SMALL[name])
    agrees(graph)
    agrees(apply_passes(graph)[0])


def test_mobilenetv3_is_torchvisions_but_for_the_term_added_to_variances() -> None:
    """With the layers that PyTorch draws from the same seed, put together as torchvision does."""
    from graph.torch_weights import mobilenetv3 as torch_mobilenetv3

    torch.manual_seed(0)
    layers = {name: layer.double().eval() for name, layer in torch_mobilenetv3().items()}
    functional = torch.nn.functional
    graph = NETWORKS["mobilenetv3"](size=32)
    inputs = inputs_of(graph)

    def conv(name: str, x: Any, stride: int = 1) -> Any:
        weight, groups = layers[name].weight, layers[name].groups
        x = functional.conv2d(x, weight, None, stride, weight.shape[-1] // 2, groups=groups)
        return layers[f"{name}.norm"](x)

    with torch.no_grad():
        x = functional.hardswish(conv("conv1", torch.from_numpy(inputs["image"]).double(), 2))
        for number in range(1, 16):
            name, before = f"block{number}", x
            activation = functional.relu if number < 7 else functional.hardswish
            if f"{name}.expand" in layers:
                x = activation(conv(f"{name}.expand", x))
            x = activation(conv(f"{name}.depthwise", x, 2 if number in (2, 4, 7, 13) else 1))
            if f"{name}.squeeze.fc1" in layers:
                means = functional.relu(layers[f"{name}.squeeze.fc1"](x.mean((2, 3))))
                x = x * functional.hardsigmoid(layers[f"{name}.squeeze.fc2"](means))[:, :, None, None]
            x = conv(f"{name}.project", x)
            x = x + before if x.shape == before.shape else x
        x = functional.hardswish(conv("conv2", x)).mean((2, 3))
        x = layers["fc2"](functional.hardswish(layers["fc1"](x)))
    (out,) = graph.outputs
    np.testing.assert_allclose(graph.reference(inputs)[out], x.numpy(), rtol=1e-9, atol=1e-12)


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
    for op in ("add", "sub", "mul", "div", "add_relu"):
        out = net.elementwise(op, out, net.conv2d(x, 6, 1, bias=op == "add"))
    return out


def activations(net: Builder, x: Value) -> Value:
    """The outputs of all activations, as the channels of one image."""
    arithmetic = ("add", "sub", "mul", "div", "add_relu")
    modes = [op for op in CATALOG.operator("elementwise").choices["op"] if not op.endswith("_backward")]
    out = x
    for op in (op for op in modes if op not in arithmetic):
        out = net.concat(out, net.activation(op, x, x if op in ("swiglu", "geglu") else None))
    return out


BUILT = {
    "activations": activations,
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
    with refuses("no-counterpart", "drop", value="dropout"):
        to_module(net.graph(net.node("drop", "dropout", axes, {"x": x}, shape=x.shape)))
    with refuses("other-layout", "conv1", value="nhwc", allowed="nchw"):
        to_module(with_layouts(NETWORKS["lenet"](), {"conv1": "nhwc"}))
    with refuses_name("peer", "jax"):
        require_known_libraries(("torch", "jax"))


# Ways, ready to be timed -------------------------------------------------------------------------------------------


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile without its code generator."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile(function, backend="eager"))


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_every_way_is_warmed_up_captured_and_computes_the_network(precision: str) -> None:
    graph, gpu = NETWORKS["lenet"](**SMALL["lenet"]), CpuInPlaceOfGpu()
    inputs = inputs_of(graph)
    reference = graph.reference_outputs(inputs)
    with peers(graph, [inputs, inputs_of(graph, 6)], precision, gpu, 60.0) as found:  # type: ignore[arg-type]
        assert found.keys() == TORCH_MODES.keys() and gpu.captures == 4 and len(gpu.warmed) == 4
        for peer in found.values():
            assert peer.error == "" and peer.call and peer.replay
            for name, out in peer.outputs.items():
                assert out.dtype == np.float32
                off = np.linalg.norm(out - reference[name]) / np.linalg.norm(reference[name])
                assert off < (1e-5 if precision == "f32" else 0.05)
            assert peer.peak_bytes == 1000 + 2 * 28 * 28 * (4 if precision == "f32" else 2)
            assert peer.input_sets == 2 and peer.write
    assert found == {}, "nothing is kept of PyTorch's once it is timed"


@pytest.mark.usefixtures("quick_compiler")
def test_channels_last_reaches_weights_and_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    ready = module_under_test._prepare_mode

    def watched(gpu: Any, function: Any, contents: Any, names: Any, limit_s: float) -> Any:
        (inputs,) = contents
        filters = [b for b in function.buffers() if b.dim() == 4 and b.shape[1] > 1]
        last = [t.is_contiguous(memory_format=torch.channels_last) for t in (*inputs, *filters)]
        seen.append((all(last), inputs[0].is_contiguous()))
        return ready(gpu, function, contents, names, limit_s)

    monkeypatch.setattr(module_under_test, "_prepare_mode", watched)
    net = Builder("net")
    graph = net.graph(net.conv2d(net.input("x", 2, 6, 9, 7), 5, 3))
    with peers(graph, [inputs_of(graph)], "f32", CpuInPlaceOfGpu(), 60.0):  # type: ignore[arg-type]
        pass
    assert seen == [(True, False), (True, False), (False, True), (False, True)]


@pytest.mark.usefixtures("quick_compiler")
def test_a_way_that_is_not_captured_can_still_be_called() -> None:
    graph = NETWORKS["lenet"](**SMALL["lenet"])
    with peers(graph, [inputs_of(graph)], "f32", CpuInPlaceOfGpu(fail_captures_of=2), 60.0) as found:  # type: ignore[arg-type]
        failed = found["PyTorch eager, channels_last"]
        assert failed.replay is None and failed.call is not None
        assert failed.error == (
            "not captured as a CUDA graph: RuntimeError: operation not permitted when stream is capturing"
        )
        assert [name for name, peer in found.items() if peer.error] == ["PyTorch eager, channels_last"]


def test_a_compiler_that_fails_or_takes_too_long_costs_its_own_ways_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(function: Any) -> Any:
        def call(*inputs: Any) -> Any:
            raise RuntimeError("Failed to find C compiler")

        return call

    graph = NETWORKS["lenet"](**SMALL["lenet"])
    monkeypatch.setattr(torch, "compile", missing)
    with peers(graph, [inputs_of(graph)], "f32", CpuInPlaceOfGpu(), 60.0) as found:  # type: ignore[arg-type]
        errors = {name: peer.error for name, peer in found.items() if peer.error}
        assert errors == dict.fromkeys(
            ("torch.compile, channels_last", "torch.compile"), "RuntimeError: Failed to find C compiler"
        )

    def slow(function: Any) -> Any:
        def call(*inputs: Any) -> Any:
            time.sleep(30)

        return call

    monkeypatch.setattr(torch, "compile", slow)
    with peers(graph, [inputs_of(graph)], "f32", CpuInPlaceOfGpu(), 2.0) as found:  # type: ignore[arg-type]
        assert "not warmed up within 2 s" in found["torch.compile"].error
        assert "--compare-limit" in found["torch.compile"].error
        assert found["PyTorch eager"].error == ""
