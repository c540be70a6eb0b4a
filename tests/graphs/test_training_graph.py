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
from opbench.graphs.layouts import permuted_from
from opbench.graphs.training import TRAINING_PASSES, Recipe, Training, training_graph
from opbench.graphs.zoo import lenet, unet

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


NETWORKS: dict[str, tuple[Callable[[], Graph], str]] = {
    "lenet": (lambda: lenet(batch=3), "cross_entropy"),
    "branching": (branching, "cross_entropy"),
    "unet": (lambda: unet(batch=2, size=12, base=3, levels=2), "binary_cross_entropy"),
}


def step(name: str, **recipe: object) -> Training:
    make, loss = NETWORKS[name]
    network = make()
    data = random_data(network, 2 * network.values["image"].shape[0], loss)
    return step_of(network, Recipe(loss=loss, **recipe), data)  # type: ignore[arg-type]


def test_the_loss_is_that_of_the_network_as_it_infers() -> None:
    """By NumPy, of the pictures that come first."""
    network = lenet(batch=3)
    data = random_data(network, 6)
    given = {"image": data.images[:3].astype(np.float64)}
    given |= {n: a.astype(np.float64) for n, a in network.weights.items()}
    scores = network._computed(given, lambda problem, tensors: problem.evaluated(tensors))[network.outputs[0]]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wanted = -logs[np.arange(3), data.targets[:3]].mean()
    assert step("lenet").graph.reference({})["loss"][0] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradients_of_a_step_are_the_slopes_of_its_loss(name: str) -> None:
    """Each parameter along a random direction, through the whole step's float64 reference."""
    training = step(name, steps=2)
    graph = training.graph
    exact = graph._exact({})

    def loss(arena: np.ndarray) -> float:
        values = graph._computed({**exact, "parameters": arena}, lambda problem, tensors: problem.evaluated(tensors))
        return float(values["loss"][0])

    rng = np.random.default_rng(1)
    values = graph.reference({})
    largest = np.linalg.norm(values["gradients"])
    for parameter, gradient in gradients_of(training, values).items():
        start, shape = training.parameters[parameter]
        direction = rng.standard_normal(shape)
        moved = np.zeros_like(exact["parameters"])
        moved[start : start + direction.size] = direction.reshape(-1)
        slopes = [
            (loss(exact["parameters"] + size * moved) - loss(exact["parameters"] - size * moved)) / (2 * size)
            for size in (STEP, STEP / 4)
        ]
        said = float(np.vdot(gradient, direction))
        allowed = 2e-6 * np.linalg.norm(gradient) * np.linalg.norm(direction) + 1e-9 * largest
        assert min(abs(slope - said) for slope in slopes) <= allowed, parameter


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
    said = {name: words for name, _, words in whole.said}
    if said[left_out]:
        tensors = [sum(len(n.inputs) for n in t.graph.nodes) for t in (whole, without)]
        assert len(without.graph.nodes) > len(whole.graph.nodes) or tensors[0] < tensors[1]


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
    assert all(np.array_equal(found[n], array) for n, array in weights.items())
    assert np.array_equal(channels_last.arena(weights), channels_last.graph.state["parameters"])


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
