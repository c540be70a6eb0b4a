"""Networks imported from PyTorch give what PyTorch gives in float64; what is not supported is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench.graph.graph import Graph
from opbench.graph.importing import from_torch
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes
from opbench.graph.saving import load, save
from support.builders.random_networks import inputs_of
from support.checks.errors import Refusal, refuses
from support.checks.graphs import check_slopes

torch = pytest.importorskip("torch", reason="too large for CI; run where PyTorch is: on the GPU machine")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


class Every(nn.Module):  # type: ignore[misc,name-defined]
    """Most operators once, with several inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.plain = nn.BatchNorm2d(4, affine=False, eps=1e-3)
        self.second = nn.Conv2d(4, 4, (3, 5), padding="valid", bias=False)
        self.third = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(4, 5)
        self.bare = nn.Linear(5, 3, bias=False)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, other):  # type: ignore[no-untyped-def]
        y = F.relu(self.norm(self.first(x)))
        z = F.interpolate(F.max_pool2d(y, 2), scale_factor=2.0)
        both = torch.cat([y, z, other], 1) * 0.5
        wide = F.interpolate(F.avg_pool2d(both, 3, 2, 1, count_include_pad=False), size=(8, 8), mode="bilinear")
        third = self.third(y) - 1.5
        narrow = self.second(self.plain(z)).relu_()
        weights = F.adaptive_avg_pool2d(y, 1)
        rows = torch.flatten(self.drop(y * weights).mean((-1, -2)), 1)
        head = self.head(rows)
        return (
            wide / (2.0 + other.mean((2, 3), keepdim=True)),
            third,
            narrow,
            F.softmax(self.bare(head), dim=-1),
            1 - head,
        )


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """In evaluation mode with running statistics that are not those of a new module."""
    torch.manual_seed(3)
    for name, buffer in module.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return module.eval()


def assert_same(graph: Graph, module: torch.nn.Module, rounding: float = 1e-12) -> None:
    inputs = inputs_of(graph)
    with torch.no_grad():
        results = module.double()(*(torch.from_numpy(inputs[name]).double() for name in graph.inputs))
    module.float()
    results = results if isinstance(results, tuple) else (results,)
    known = graph.reference(inputs)
    assert len(results) == len(graph.outputs)
    for name, result in zip(graph.outputs, results, strict=True):
        np.testing.assert_allclose(known[name], result.numpy(), rtol=rounding, atol=rounding, err_msg=name)


@pytest.mark.parametrize("decomposed", [False, True], ids=["as traced", "decomposed"])
def test_every_operator_gives_what_pytorch_gives(decomposed: bool, tmp_path: Path) -> None:
    module = randomised(Every())
    arguments = (torch.randn(2, 2, 8, 8), torch.randn(2, 1, 8, 8))
    program = torch.export.export(module, arguments)
    graph = from_torch(program.run_decompositions() if decomposed else program, name="every")
    assert_same(graph, module, 1e-6)  # another epsilon is rounded into the variance
    assert "first.weight" in graph.weights
    fused, done = apply_passes(graph)
    assert_same(fused, module, 1e-5)
    assert any("folded" in sentence for sentence in done)
    images = {node.name: "nhwc" for node in fused.nodes if "layout" in node.problem.axes}
    assert_same(with_layouts(fused, images), module, 1e-5)
    save(graph, tmp_path / "every.json")
    assert_same(load(tmp_path / "every.json"), module, 1e-6)


class Activations(nn.Module):  # type: ignore[misc,name-defined]
    """Every activation once, between layers; softsign is traced as a quotient."""

    def __init__(self) -> None:
        super().__init__()
        every = [nn.Softsign(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU()]
        every += [nn.ELU(), nn.SELU(), nn.Softplus(), nn.Hardswish(), nn.Hardsigmoid(), nn.Hardtanh()]
        self.layers = nn.Sequential(*(part for one in every for part in (nn.Linear(6, 6), one)))

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = self.layers(x)
        return F.silu(y) * torch.exp(-torch.abs(y))


def test_activations_are_modes_of_elementwise() -> None:
    module = randomised(Activations())
    graph = from_torch(module, torch.randn(3, 6))
    assert_same(graph, module)
    backward = check_slopes(graph, ["layers.20.weight"])
    modes = {node.problem.axes.get("op") for node in backward.nodes}
    assert {"hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "silu_backward", "exp_backward"} <= modes


class Classifier(nn.Module):  # type: ignore[misc,name-defined]
    """As torchvision writes them: a sequence of features and one of layers, a residual connection between."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding="same"), nn.BatchNorm2d(6), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(294, 20), nn.ReLU(), nn.Linear(20, 10))

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.features(x)
        x = self.pool(x + self.block(x))
        return self.classifier(x.view(x.size(0), -1))


def test_a_module_a_program_and_its_file_are_one_network(tmp_path: Path) -> None:
    module = randomised(Classifier())
    image = torch.randn(2, 1, 28, 28)
    graph = from_torch(module, image)
    assert_same(graph, module)
    torch.export.save(torch.export.export(module, (image,)), tmp_path / "module.pt2")
    again = from_torch(tmp_path / "module.pt2")
    assert again.nodes == graph.nodes
    assert_same(again, module)
    fused, _ = apply_passes(graph)
    operators = " ".join(node.operator for node in fused.nodes)
    assert operators == "conv2d maxpool2d conv2d elementwise avgpool2d linear linear"
    assert_same(fused, module, 1e-5)


@pytest.mark.parametrize("make", ["trace", "script"])
@pytest.mark.parametrize("module", [Every, Classifier])
def test_torchscript_is_read_too(module: type[torch.nn.Module], make: str) -> None:
    eager = randomised(module())
    arguments = (torch.randn(2, 2, 8, 8), torch.randn(2, 1, 8, 8)) if module is Every else (torch.randn(2, 1, 28, 28),)
    script = torch.jit.trace(eager, arguments) if make == "trace" else torch.jit.script(eager)
    graph = from_torch(script, *arguments)
    assert_same(graph, eager, 1e-6)
    assert {name.partition(".")[0] for name in graph.weights} & {"first", "features"}


def call(function):  # type: ignore[no-untyped-def]
    """A module that calls a function."""

    class Module(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return function(x)

    return Module().eval()


def test_what_is_not_supported_is_named_with_its_node() -> None:
    image = torch.randn(1, 4, 8, 8)
    for module, refusal in (
        (call(torch.sin), Refusal("unknown-operator", "'sin' (aten.sin.default)", value="sin")),
        (nn.LeakyReLU(0.25), Refusal("unsupported-option", value=("negative_slope", 0.25), allowed=0.01)),
        (nn.Conv2d(4, 4, 3, groups=2).eval(), Refusal("unsupported-option", value=("groups", 2), allowed=1)),
        (nn.Conv2d(4, 4, 3, dilation=2).eval(), Refusal("unsupported-option", value=("dilation", [2, 2]), allowed=1)),
        (nn.Conv2d(4, 4, 3, stride=(1, 2)).eval(), Refusal("unsupported-option", value=("stride", [1, 2]))),
        (nn.MaxPool2d(3, 2, ceil_mode=True).eval(), Refusal("unsupported-option", value=("ceil_mode", True))),
        (nn.Upsample(scale_factor=1.5), Refusal("unsupported-option", value=("scale", 1.5))),
        (
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            Refusal("unsupported-option", value=("align_corners", True)),
        ),
        (call(lambda x: torch.cat([x, x], 2)), Refusal("unsupported-option", value=("axis", 2), allowed=1)),
        (call(lambda x: torch.softmax(x, 1)), Refusal("other-axis", value=1)),
        (call(lambda x: x.mean(1)), Refusal("other-axis", value=[1])),
        (call(lambda x: x.transpose(1, 2)), Refusal("computed", value="input")),
        (nn.AdaptiveAvgPool2d(3), Refusal("other-windows", value=(8, 8))),
        (nn.BatchNorm2d(4, track_running_stats=False).eval(), Refusal("unsupported-option", value=("training", True))),
        (nn.Linear(8, 3).eval(), Refusal("not-rows", value=(1, 4, 8, 8), allowed=8)),
    ):
        with refuses(refusal):
            from_torch(module.eval(), image)
    with refuses("training-mode", "BatchNorm2d"):
        from_torch(nn.BatchNorm2d(4), image)
    with refuses("no-such-file", "none.pt2"):
        from_torch("none.pt2")
    batch = {"x": {0: torch.export.Dim("batch", min=2, max=9)}}
    dynamic = torch.export.export(call(F.relu), (torch.randn(3, 2),), dynamic_shapes=batch)
    with refuses("shape-not-fixed"):
        from_torch(dynamic)
