"""Networks run on the cpu backend: every node right, one copy of the weights for many contexts, bad input refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import Backend
from opbench.checking.backends import open_backend
from opbench.checking.binding import Binding, bind
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.zoo import lenet
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.inputs import digits_test_set, trained_lenet
from opbench.networks.plan.plan import PlanOptions, choose
from support.builders.small_networks import pictures, residual
from support.checks.errors import Refusal, refuses
from support.common import CATALOG


def ready(graph: Graph, precision: str = "f32") -> Network:
    """A network on the cpu backend with a variant for every node."""
    return Network(graph, choose(graph, {}, PlanOptions(precision)).cases(graph), open_backend("cpu"))


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_every_output_is_right(fused: bool, parallel: bool) -> None:
    graph = residual()
    wanted = graph.reference(pictures(graph))
    graph = apply_passes(graph)[0] if fused else graph
    network = ready(graph)
    context = Context(network, parallel=parallel)
    for name, out in context.run(pictures(graph)).items():
        np.testing.assert_allclose(out, wanted[name], rtol=1e-4, atol=1e-5)
    context.close()
    network.close()


def test_kernels_give_the_class_that_pytorch_gave_for_every_digit() -> None:
    pytest.importorskip("sklearn", reason="ships the digits; opbench[nets] brings it")
    images, _ = digits_test_set()
    graph, _ = apply_passes(lenet(len(images)).with_weights(trained_lenet()))
    context = Context(ready(graph))
    found = context.run({"image": images})["fc5"].argmax(1)
    said = json.loads(Path(__file__).with_name("lenet_digits.json").read_text())
    assert found.tolist() == said["test_classes"]


def test_paths_agree_within_the_precision_of_each() -> None:
    graph, _ = apply_passes(lenet(3))
    wanted = graph.reference(pictures(graph))["fc5"]
    able = [node.name for node in graph.nodes if "layout" in node.problem.modes()]
    turned = with_layouts(to_dtype(graph, "bf16"), dict.fromkeys(able, "nhwc"))
    for path, precision, allowed in ((graph, "f32", 1e-5), (turned, "bf16", 0.03)):
        out = Context(ready(path, precision)).run(pictures(graph))["fc5"]
        assert np.linalg.norm(out - wanted) <= allowed * np.linalg.norm(wanted)


def test_threads_share_the_weights_and_give_the_same_answers() -> None:
    graph, _ = apply_passes(lenet(2))
    network = ready(graph)
    inputs = [pictures(graph, seed) for seed in range(6)]
    alone = Context(network)
    wanted = [alone.run(given)["fc5"] for given in inputs]
    contexts = [Context(network) for _ in range(3)]
    assert all(c.buffer("fc3.weight") is network.weights["fc3.weight"] for c in contexts)

    def work(number: int) -> list[np.ndarray]:
        return [contexts[number].run(given)["fc5"] for given in inputs]

    with ThreadPoolExecutor(3) as pool:
        for answers in pool.map(work, range(3)):
            for got, want in zip(answers, wanted, strict=True):
                np.testing.assert_array_equal(got, want)


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    graph, _ = apply_passes(lenet(1))
    network = ready(graph)
    context = Context(network)
    context.launches = {}  # any launch would fail
    for inputs, refusal in (
        ({}, Refusal("missing-input", "image")),
        ({"image": np.zeros((1, 1, 28, 27), np.float32)}, Refusal("other-shape", "image", value=(1, 1, 28, 27))),
        ({"image": np.zeros((1, 1, 28, 28))}, Refusal("other-dtype", "image", value="float64")),
        ({"imag": np.zeros((1, 1, 28, 28), np.float32)}, Refusal("missing-input", "image")),
    ):
        with refuses(refusal):
            context.run(inputs)
    cases = dict(network.cases)
    other = apply_passes(lenet(2))[0]
    with refuses("other-problem", "conv1"):
        Network(other, cases, open_backend("cpu"))
    del cases["pool2"]
    with refuses("no-variant", "pool2"):
        Network(graph, cases, open_backend("cpu"))


def test_only_constants_may_be_read_before_the_launch_ahead_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that reads what may be written just ahead of it waits for all of that."""
    pending_by_operator: dict[str, set[str]] = {}

    def seen(backend: Backend, case: Case, *rest: object, pending_inputs: Collection[str], **more: object) -> Binding:
        pending_by_operator[case.problem.name] = set(pending_inputs)
        return Binding(lambda: None)

    monkeypatch.setattr("opbench.networks.plan.executor.bind", seen)
    graph = lenet(1)
    context = Context(Network(graph, choose(graph, {}, PlanOptions("f32")).cases(graph), open_backend("cpu")))
    context.close()
    assert pending_by_operator["linear"] == {"x", "out"} and pending_by_operator["conv2d"] == {"image", "out"}
    training = training_graph(lenet(1), Recipe(loss="cross_entropy", steps=1), 1).graph
    step = Context(Network(training, choose(training, {}, PlanOptions("f32")).cases(training), open_backend("cpu")))
    step.close()
    assert "weight" in pending_by_operator["linear"], "the optimiser writes it"


def test_a_launch_that_overlaps_is_bound_so_only_where_its_early_inputs_are_safe() -> None:
    case = case_named("linear/wgmma_few_rows_bf16[TILES=1,SPLIT=2](m=1,n=64,k=64,dtype=bf16)")
    bound: list[KernelLaunch] = []

    class Loaded:
        sm_count = 132

        def load(self, request: BuildRequest) -> Loaded:
            return self

        def bind(self, launches: Sequence[KernelLaunch], buffers: object) -> None:
            bound.extend(launches)

    for written in ((), ("x", "out"), ("weight",)):
        bind(Loaded(), case, {}, pending_inputs=written)  # type: ignore[arg-type]
    assert [(launch.programmatic, launch.early) for launch in bound] == [
        (True, ("weight", "bias")), (True, ("weight", "bias")), (False, ("weight", "bias")),
    ]  # fmt: skip
    bound.clear()
    bind(Loaded(), case_named("linear/wgmma_planes(m=1,n=64,k=64)"), {}, pending_inputs=("weight",))  # type: ignore[arg-type]
    assert [launch.programmatic for launch in bound] == [False, True, True], "the first one waits for who wrote it"


def test_nodes_with_the_same_barrier_between_blocks_run_one_after_another() -> None:
    net = Builder("branches")
    x = net.input("image", 2, 8, 4, 4)
    left, right = (net.batchnorm2d(net.conv2d(x, 8, 1, name=name)) for name in ("left", "right"))
    network = net.graph(net.linear(net.flatten(net.elementwise("add", left, right)), 5))
    images = {node.name: "nhwc" for node in network.nodes if "layout" in node.problem.modes()}
    graph = training_graph(with_layouts(network, images), Recipe(), 8).graph
    cases = choose(graph, {}, PlanOptions("f32")).cases(graph)
    second, first = "batchnorm1.batchnorm2d_backward", "batchnorm2.batchnorm2d_backward"
    assert first not in graph.waits_for(second)
    for variant, waits in (("nhwc_grid[UNROLL=2]", True), ("nhwc_vector", False)):
        chosen = CATALOG.case(f"batchnorm2d_backward/{variant}{graph.node(first).problem}")
        step = Network(graph, {**cases, first: chosen, second: chosen}, open_backend("cpu"))
        assert (first in step.waits_for(second)) is waits and second not in step.waits_for(first)
        step.close()
