"""A step of training as a graph, in float64: against differences of the network, and alike with each pass left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from training_data import gradients_of, random_data, step_of

from opbench.errors import UsageError
from opbench.graphs.build import Builder
from opbench.graphs.graph import Graph
from opbench.graphs.training import TRAINING_PASSES, Recipe, training_graph
from opbench.graphs.zoo import lenet

STEP = 1e-6


def branching() -> Graph:
    """A ReLU that two nodes read, one of them a pool, as on UNet's way down; a stride; a bias that is clipped."""
    net = Builder("branching")
    x = net.input("image", 3, 2, 9, 7)
    a = net.relu(net.conv2d(x, 4, 3, padding=1, name="conv1"), name="relu1")
    b = net.relu(net.conv2d(net.maxpool2d(a, 3, 2, name="pool"), 5, 3, padding=1, name="conv2"), name="relu2")
    c = net.relu(net.conv2d(a, 5, 3, stride=2, name="conv3"), name="relu3")
    d = net.elementwise("mul", b, c, name="product")
    return net.graph(net.linear(net.flatten(net.avgpool2d(d, 2, 1, name="mean")), 6, name="scores"))


NETWORKS: dict[str, Callable[[], Graph]] = {"lenet": lambda: lenet(batch=3), "branching": branching}


def loss_of(network: Graph, images: np.ndarray, classes: np.ndarray, weights: dict[str, np.ndarray]) -> float:
    """The mean cross entropy of the network as it infers, in float64, by NumPy."""
    given = {network.inputs[0]: images.astype(np.float64), **weights}
    values = network._computed(given, lambda problem, tensors: problem.evaluated(tensors))
    scores = values[network.outputs[0]]
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(classes)), classes].mean())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradients_of_a_step_are_the_slopes_of_its_loss(name: str) -> None:
    network = NETWORKS[name]()
    batch = network.values["image"].shape[0]
    data = random_data(network, 2 * batch)
    training = step_of(network, Recipe(steps=2), data)
    values = training.graph.reference({})
    weights = {n: a.astype(np.float64) for n, a in network.weights.items()}
    images, classes = data.images[:batch], data.targets[:batch]
    assert values["loss"][0] == pytest.approx(loss_of(network, images, classes, weights), rel=1e-12)
    rng = np.random.default_rng(1)
    for parameter, gradient in gradients_of(training, values).items():
        direction = rng.standard_normal(gradient.shape)
        ahead, behind = (
            loss_of(network, images, classes, weights | {parameter: weights[parameter] + sign * STEP * direction})
            for sign in (1, -1)
        )
        slope, said = (ahead - behind) / (2 * STEP), float(np.vdot(gradient, direction))
        assert abs(slope - said) <= 2e-6 * np.linalg.norm(gradient) * np.linalg.norm(direction) + 1e-10, parameter


@pytest.mark.parametrize("left_out", TRAINING_PASSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_each_pass_changes_no_gradient(name: str, left_out: str) -> None:
    network = NETWORKS[name]()
    data = random_data(network, network.values["image"].shape[0])
    whole, without = (step_of(network, Recipe(without=names), data) for names in ((), (left_out,)))
    one, other = (gradients_of(t, t.graph.reference({})) for t in (whole, without))
    assert one.keys() == other.keys()
    for parameter, gradient in one.items():
        assert np.linalg.norm(gradient - other[parameter]) <= 1e-11 * np.linalg.norm(gradient), parameter
    did = {name: said for name, _, said in whole.said}
    assert not did[left_out] or len(without.graph.nodes) > len(whole.graph.nodes)


def test_passes_find_what_they_are_for() -> None:
    def said(network: Graph) -> dict[str, tuple[str, ...]]:
        return {name: words for name, _, words in training_graph(network, Recipe(), 3).said}

    assert said(branching())["fuse_gradient_add"] == ("d.relu1.add: fused into pool.maxpool2d_backward",)
    assert said(lenet())["fuse_relu_backward"] == (
        "fc4.relu_backward: fused into fc5.linear_dgrad",
        "fc3.relu_backward: fused into fc4.linear_dgrad",
    )


def test_the_optimiser_waits_for_all_who_read_the_old_parameters() -> None:
    """Also where nodes run in parallel: the order of the list alone does not count there."""
    graph = training_graph(lenet(batch=2), Recipe(), 4).graph
    waits = set(graph.waits_for("optimizer"))
    readers = {n.name for n in graph.nodes if any(graph.base(v) == "parameters" for v in n.inputs.values())}
    writers = {n.name for n in graph.nodes if any(graph.base(v) == "gradients" for v in n.outputs.values())}
    assert waits >= (readers | writers) - {"optimizer"} and len(readers) > 5 and len(writers) == 5
    assert set(graph.waits_for("fc5.linear_wgrad")) & {"fc4", "loss"} == {"fc4", "loss"}


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
    ("change", "message"),
    [
        ({"loss": "cross_entrpy"}, "unknown loss 'cross_entrpy'.*cross_entropy"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'"),
        ({"steps": 0}, "0 steps are not allowed"),
        ({"learning_rate": -1.0}, "--lr -1.0 is not allowed"),
        ({"without": ("fuse_reluu",)}, "unknown pass 'fuse_reluu'"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(**change)  # type: ignore[arg-type]


def test_what_a_loss_cannot_take_is_refused() -> None:
    net = Builder("image")
    image = net.graph(net.conv2d(net.input("image", 1, 1, 5, 5), 1, 3, padding=1))
    with pytest.raises(UsageError, match=r"cross_entropy takes rows of scores.*binary_cross_entropy"):
        training_graph(image, Recipe(loss="cross_entropy"), 3)
    net = Builder("two")
    a, b = net.input("a", 1, 5), net.input("b", 1, 5)
    with pytest.raises(UsageError, match="2 inputs and 1 outputs"):
        training_graph(net.graph(net.elementwise("add", a, b)), Recipe(), 3)


def test_learning_rates_rise_and_fall() -> None:
    rates = Recipe(learning_rate=1.0, schedule="cosine", warmup_steps=4, steps=14).learning_rates()
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and rates[4] == 1.0
    assert (np.diff(rates[4:]) < 0).all() and rates[-1] > 0
    assert set(Recipe(learning_rate=0.5, steps=3).learning_rates()) == {0.5}
