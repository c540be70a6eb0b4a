"""A step of training as a graph, in float64: against differences of the network, and alike with each pass left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import permuted_from
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.training_passes import TRAINING_PASSES
from opbench.graph.training_step import CLIP
from opbench.graph.zoo import lenet, resnet50
from support.builders.training_data import gradients_of
from support.checks.errors import refuses, refuses_name
from support.checks.graphs import (
    NETWORKS,
    branching,
    check_slopes_of_a_step,
    check_the_loss,
    check_the_optimizer_waits,
    residual,
    step,
)


def test_the_loss_is_that_of_the_network_as_it_infers() -> None:
    check_the_loss()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradients_of_a_step_are_the_slopes_of_its_loss(name: str) -> None:
    check_slopes_of_a_step(name)


@pytest.mark.parametrize("left_out", TRAINING_PASSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_pass_changes_no_gradient(name: str, left_out: str) -> None:
    whole, without = step(name), step(name, without=(left_out,))
    one, other = (gradients_of(t, t.graph.reference({})) for t in (whole, without))
    assert one.keys() <= other.keys()
    largest = max(np.linalg.norm(gradient) for gradient in one.values())
    for parameter, gradient in one.items():
        assert np.linalg.norm(gradient - other[parameter]) <= 1e-11 * np.linalg.norm(gradient), parameter
    for parameter in other.keys() - one.keys():  # a bias before a batch norm: what it is left out for
        assert np.linalg.norm(other[parameter]) <= 1e-12 * largest, parameter
    said = {rewrite.name: rewrite.notes for rewrite in whole.rewrites}
    if said[left_out]:
        moved = [sum(n.problem.bytes() for n in t.graph.nodes) for t in (whole, without)]
        assert moved[0] < moved[1]


@pytest.mark.parametrize("name", ["lenet", "unet"])
def test_nhwc_gives_the_same_gradients_in_its_order(name: str) -> None:
    """And the network's weights, in and out of the arena, in the order in which it was built."""
    weights = NETWORKS[name][0]().weights
    plain, channels_last = step(name), step(name, layout="nhwc")
    assert any("layout=nhwc" in str(node.problem) for node in channels_last.graph.nodes)
    one, other = (gradients_of(t, t.graph.reference({})) for t in (plain, channels_last))
    restored = dict(permuted_from(n, gradient, weights) for n, gradient in other.items())
    assert restored.keys() == one.keys()
    for parameter, gradient in one.items():
        assert np.linalg.norm(gradient - restored[parameter]) <= 1e-11 * np.linalg.norm(gradient), parameter
    found = channels_last.weights(channels_last.graph.state)
    assert all(np.array_equal(found[n], weights[n]) for n in one)
    assert np.array_equal(channels_last.parameter_array(weights), channels_last.graph.state["parameters"])


@pytest.mark.parametrize("name", ["lenet", "unet"])
def test_the_weights_of_a_step_infer_as_the_network_that_it_trains(name: str) -> None:
    """Also where a bias before a batch norm was left out: the running mean is then without it."""
    network = NETWORKS[name][0]()
    training = step(name)
    again = network.with_weights(training.weights(training.graph.state))
    images = {"image": np.random.default_rng(2).standard_normal(network.values["image"].shape, np.float32)}
    (out,) = network.outputs
    one, other = network.reference(images)[out], again.reference(images)[out]
    assert np.linalg.norm(one - other) <= 1e-6 * np.linalg.norm(one)


def test_running_statistics_are_those_of_the_network_as_it_infers() -> None:
    """After many steps on one batch the network infers on it what it gave in training.

    But for the running variance, which is unbiased: at the bottom 18 / 17 of the batch's.
    """
    training = step("unet", learning_rate=1e-9, steps=120)
    graph = training.graph
    state = dict(graph._float64_values({}))
    state["order"] = np.resize(np.arange(2.0), state["order"].shape)
    for _ in range(training.recipe.steps):
        values = graph._compute_values(state, lambda problem, tensors: problem.evaluated(tensors))
        state |= {v.updates: values[v.name] for v in graph.values.values() if v.updates}
    network = training.forward.with_weights(training.weights(state))
    images = state["data"][:2].reshape(network.values["image"].shape).astype(np.float32)
    trained, inferred = values["head"], network.reference({"image": images})[network.outputs[0]]
    assert np.linalg.norm(trained - inferred) <= 0.1 * np.linalg.norm(trained)


def test_passes_find_what_they_are_for() -> None:
    def said(network: Graph) -> dict[str, tuple[str, ...]]:
        return {rewrite.name: rewrite.notes for rewrite in training_graph(network, Recipe(), 3).rewrites}

    assert said(branching())["fuse_gradient_add"] == ("d.relu1.add: fused into pool.maxpool2d_backward",)
    assert said(residual())["fuse_residual_into_batchnorm"] == ("sum1: fused into norm", "sum2: fused into norm3")
    assert said(lenet())["fuse_relu_backward"] == (
        "fc4.relu_backward: fused into fc5.linear_dgrad",
        "fc3.relu_backward: fused into fc4.linear_dgrad",
        "conv2.relu_backward: fused into pool2.maxpool2d_backward",
        "conv1.relu_backward: fused into pool1.maxpool2d_backward",
    )
    deep = training_graph(resnet50(size=32, base=2, classes=3), Recipe(), 2).graph
    unfused = [node.name for node in deep.nodes if node.operator == "relu_backward"]
    fused = [node.name for node in deep.nodes if node.problem.axes.get("epilogue") == "add_mask"]
    assert unfused == ["layer4.2.sum.relu_backward"] and len(fused) == 15
    assert said(lenet())["remember_positions"] == (
        "pool2.maxpool2d_backward: reads the positions that pool2 writes in place of the image, 4.00 kB fewer for both",
        "pool1.maxpool2d_backward: reads the positions that pool1 writes in place of the image, 11.8 kB fewer for both",
    )


def test_a_maximum_whose_position_is_remembered_frees_what_was_pooled() -> None:
    """Of LeNet nobody else reads the clipped image; the ReLU's mask comes from the maxima."""
    training = step("lenet")
    (pooling, back) = (training.graph.node(name) for name in ("pool1", "pool1.maxpool2d_backward"))
    assert set(back.inputs) == {"positions", "dout", "out"} and back.inputs["out"] == pooling.outputs["out"]
    assert training.graph.values[pooling.outputs["positions"]].dtype == "u8"
    assert [node.name for node in training.graph.consumers(pooling.inputs["x"])] == ["pool1"]


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_layer_read_is_done_with_before_its_gradient_takes_memory(name: str) -> None:
    """The weights' gradient reads it, so that goes first."""
    order = {node.name: number for number, node in enumerate(step(name).graph.nodes)}
    both = [(order[n], order[n.replace("wgrad", "dgrad")]) for n in order if n.replace("wgrad", "dgrad") in order]
    both = [(first, second) for first, second in both if first != second]
    assert both and all(first < second for first, second in both)


def test_the_optimiser_waits_for_all_who_read_the_old_parameters() -> None:
    check_the_optimizer_waits()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_a_large_norm_are_scaled_down_to_the_limit(dtype: str, accumulate: int) -> None:
    """The optimiser waits for the factor; what it takes has the norm that is allowed, or is the gradient itself."""
    plain = step("branching", optimizer="sgd", momentum=0.0, dtype=dtype, accumulate=accumulate)
    exact = plain.graph.reference({})

    def moved(values: dict[str, np.ndarray]) -> np.ndarray:
        return values["parameters.next"] - plain.graph.state["parameters"]

    norm = np.linalg.norm(exact["gradients" if accumulate == 1 else "gradients.learned"])
    for limit in (0.1 * norm, 10 * norm):
        clipped = step("branching", optimizer="sgd", momentum=0.0, dtype=dtype, accumulate=accumulate, clip=limit)
        values = clipped.graph.reference({})
        factor = min(1.0, float(np.float32(limit)) / (norm + 1e-6))
        assert values["rates"][3] == pytest.approx(factor, rel=1e-12)
        assert moved(values) == pytest.approx(factor * moved(exact), rel=1e-9, abs=1e-15)
        waits = clipped.graph.waits_for("optimizer")
        assert {"clip_gradients", "tick"} <= set(waits)
        whole = {n.name for n in clipped.graph.nodes if "wgrad" in n.name} if accumulate == 1 else {"accumulate"}
        assert whole <= set(clipped.graph.waits_for(CLIP))
    with refuses("not-allowed", "--clip", value=-1):
        Recipe(clip=-1)


def test_gradient_arenas_hold_every_parameter_once_and_aligned() -> None:
    training = training_graph(branching(), Recipe(), 3)
    places = sorted((start, int(np.prod(shape)), name) for name, (start, shape) in training.parameters.items())
    assert {name for _, _, name in places} == set(branching().weights)
    assert all(start % 64 == 0 for start, _, _ in places)
    assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(places))
    arena = training.graph.state["parameters"]
    for name, array in training.weights({"parameters": arena}).items():
        assert np.array_equal(array, branching().weights[name])


@pytest.mark.parametrize(
    ("change", "flag", "value"),
    [
        ({"steps": 0}, "--steps", 0),
        ({"learning_rate": -1.0}, "--lr", -1.0),
        ({"accumulate": 0}, "--accumulate", 0),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(change: dict[str, object], flag: str, value: object) -> None:
    with refuses("not-allowed", flag, value=value):
        Recipe(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "seen", "nearest"),
    [
        ("loss", "cross_entrpy", "cross_entropy"),
        ("optimizer", "adm", "adam"),
        ("schedule", "cosin", "cosine"),
    ],
)
def test_a_name_that_no_recipe_knows_is_refused(key: str, seen: str, nearest: str) -> None:
    with refuses_name(key, seen, nearest, where=f"--{key}"):
        Recipe(**{key: seen})  # type: ignore[arg-type]


def test_a_pass_that_training_lacks_is_refused() -> None:
    with refuses_name("pass", "fuse_reluu", "fuse_relu", where="--disable"):
        Recipe(without=("fuse_reluu",))


def test_what_a_loss_cannot_take_is_refused() -> None:
    net = Builder("image")
    image = net.graph(net.conv2d(net.input("image", 1, 1, 5, 5), 1, 3, padding=1))
    with refuses("not-rows", value=(1, 1, 5, 5)):
        training_graph(image, Recipe(loss="cross_entropy"), 3)
    net = Builder("two")
    a, b = net.input("a", 1, 5), net.input("b", 1, 5)
    with refuses("not-one-each", "two", value=(2, 1)):
        training_graph(net.graph(net.elementwise("add", a, b)), Recipe(), 3)


def test_learning_rates_rise_and_fall() -> None:
    rates = Recipe(learning_rate=1.0, schedule="cosine", warmup_steps=4, steps=14).learning_rates()
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and rates[4] == 1.0
    assert (np.diff(rates[4:]) < 0).all() and rates[-1] > 0
    assert set(Recipe(learning_rate=0.5, steps=3).learning_rates()) == {0.5}
