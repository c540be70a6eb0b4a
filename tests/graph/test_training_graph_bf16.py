"""A step of training in bf16 as a graph: what is stored in which precision, and that nothing but rounding is new."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.problems import network_problems
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.training_passes import TRAINING_PASSES
from opbench.graph.training_step import BF16_PARAMETERS, Training
from opbench.kernels.tensors import rounded, to_storage
from support.builders.training_data import gradients_of, random_data, step_of
from support.checks.errors import refuses
from support.checks.graphs import NETWORKS, check_the_optimizer_waits, step

IN_F32 = {"moment1", "moment2", "velocity", "losses", "loss", "rates", "learning_rates", "hyper"}
OF_A_CHANNEL = (".mean", ".variance", ".batch_mean", ".batch_rstd", ".scale", ".shift")
"""Ends of the names of what batch norm has in f32."""


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", NETWORKS)
def test_each_value_has_its_precision(name: str, optimizer: str, layout: str) -> None:
    training = step(name, optimizer=optimizer, layout=layout, dtype="bf16")
    graph, places = training.graph, training.parameters
    assert graph.values["data"].dtype == graph.values[BF16_PARAMETERS].dtype == "bf16"
    assert graph.values["parameters"].dtype == graph.values["gradients"].dtype == "f32"
    for parameter, (start, shape) in places.items():
        alone = parameter.endswith(("scale", "shift"))  # of a batch norm, whose own operator takes them in f32
        assert graph.memory_range(parameter) == (
            "parameters" if alone else BF16_PARAMETERS,
            start,
            start + int(np.prod(shape)),
        )
    targets = "i32" if NETWORKS[name][1] == "cross_entropy" else "bf16"
    for value in graph.values.values():
        own, base = value.name.removesuffix(".next"), graph.base(value.name).removesuffix(".next")
        if own in ("targets", "targets.batch", "target"):
            assert value.dtype == targets, own
        elif own.endswith(".positions"):  # of maxima in their windows
            assert value.dtype == "u8", own
        elif own not in ("step", "order"):
            wide = base in ("parameters", "gradients") or own in IN_F32 or own.endswith(OF_A_CHANNEL)
            assert value.dtype == ("f32" if wide else "bf16"), own
    made = {graph.base(name) for node in graph.nodes for name in node.outputs.values()}
    assert sum(graph.values[name].dtype == "bf16" for name in made) > len(graph.nodes) / 2


@pytest.mark.parametrize("left_out", ["", *TRAINING_PASSES])
@pytest.mark.parametrize("name", NETWORKS)
def test_bf16_changes_nothing_but_rounding(name: str, left_out: str) -> None:
    """In float64 the gradients of both steps are the same, of weights and pictures that bf16 holds as they are."""
    make, loss = NETWORKS[name]
    network = make()
    network = network.with_weights({n: rounded(w, "bf16").astype(np.float32) for n, w in network.weights.items()})
    data = random_data(network, 2 * network.values["image"].shape[0], loss)
    data = replace(data, images=rounded(data.images, "bf16").astype(np.float32))
    without = (left_out,) if left_out else ()
    steps = [step_of(network, Recipe(loss=loss, without=without, dtype=dtype), data) for dtype in ("f32", "bf16")]
    one, other = (gradients_of(t, t.graph.reference({})) for t in steps)
    assert one.keys() == other.keys()
    for parameter, gradient in one.items():
        assert np.linalg.norm(gradient - other[parameter]) <= 1e-12 * np.linalg.norm(gradient), parameter


def test_the_copy_is_the_parameters_rounded_from_the_first_step_on() -> None:
    training = step("unet", dtype="bf16")
    state = training.graph.state
    assert np.array_equal(state[BF16_PARAMETERS], to_storage(state["parameters"], "bf16"))
    values = training.graph.reference({})
    assert np.array_equal(values[f"{BF16_PARAMETERS}.next"], rounded(values["parameters.next"], "bf16"))
    weights = {n: 1.01 * w for n, w in training.forward.weights.items()}
    given = training.initial_parameters(weights)
    assert given.keys() == {"parameters", BF16_PARAMETERS} and not np.array_equal(
        given[BF16_PARAMETERS], state[BF16_PARAMETERS]
    )
    assert np.array_equal(given[BF16_PARAMETERS], to_storage(given["parameters"], "bf16"))
    found = training.weights({**state, **given})
    for name in training.parameters:
        assert np.array_equal(found[name], weights[name].astype(np.float32)), "masters lose nothing"
    assert step("unet").initial_parameters(weights).keys() == {"parameters"}


def test_the_optimiser_waits_for_all_who_read_the_copy() -> None:
    check_the_optimizer_waits("bf16", BF16_PARAMETERS)


def scaled() -> Training:
    """A product with a learned array, whose gradient comes out in bf16 as every result of its operator."""
    net = Builder("scaled")
    x = net.input("image", 3, 7)
    gate = net.weight("gate", (3, 7), 1.0)
    network = net.graph(net.linear(net.elementwise("mul", x, gate), 4, name="scores"))
    return step_of(network, Recipe(dtype="bf16"), random_data(network, 6))


def test_a_gradient_that_comes_out_in_bf16_is_widened() -> None:
    training = scaled()
    graph = training.graph
    (node,) = (node for node in graph.nodes if node.operator == "convert")
    (out,) = node.outputs.values()
    assert graph.base(out) == "gradients" and graph.values[node.inputs["x"]].dtype == "bf16"
    assert "optimizer" not in graph.waits_for(node.name) and node.name in graph.waits_for("optimizer")
    values = graph.reference({})
    gate = values[node.inputs["x"]]
    assert np.linalg.norm(gate) > 0 and np.array_equal(gradients_of(training, values)["gate"], gate)


def test_a_weight_in_two_precisions_is_refused() -> None:
    net = Builder("shared")
    x = net.conv2d(net.input("image", 2, 1, 6, 6), 3, 3, name="conv")
    (both,) = (v for v in net._values.values() if v.name == "conv.bias")
    parts = {"scale": both, **{n: net.weight(n, (3,), 0.5, centre=1.0) for n in ("shift", "mean", "variance")}}
    x = net.node("norm", "batchnorm2d", {"n": 2, "c": 3, "h": 4, "w": 4}, {"x": x, **parts})
    network = net.graph(net.linear(net.flatten(x), 4))
    training_graph(network, Recipe(), 3)
    with refuses("mixed-dtypes", "conv.bias", value="f32", allowed="bf16"):
        training_graph(network, Recipe(dtype="bf16", without=("drop_bias_before_batchnorm",)), 3)


def test_a_suite_asks_for_the_problems_of_a_step_in_bf16() -> None:
    found = network_problems("unet", {"size": 32, "base": 4, "levels": 2, "batch": 2}, "bf16", "both", training=True)
    stored = {problem.name for problem in found if problem.storage == "bf16"}
    assert {"conv2d", "conv2d_dgrad", "conv2d_wgrad", "batchnorm2d_backward", "sigmoid_cross_entropy"} <= stored
    assert [str(p) for p in found if p.name == "adam"] == ["(n=8960,copy=bf16)"]
