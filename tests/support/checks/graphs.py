"""Checks of a network's backward pass and of a step of training in float64, for tests and for errors planted there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.gradients import append_backward
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.training_step import Training
from opbench.graph.values import Value
from opbench.graph.zoo import lenet, unet
from support.builders.training_data import gradients_of, random_data, step_of

STEP = 1e-6


def with_seed(graph: Graph) -> Graph:
    """The network with one more input: the gradient of a loss by its output."""
    (out,) = graph.outputs
    seed = Value("seed", graph.values[out].shape)
    return Graph(
        graph.name, {**graph.values, "seed": seed}, graph.nodes, (*graph.inputs, "seed"), graph.outputs, graph.weights
    )


def check_slopes(graph: Graph, wanted: list[str]) -> Graph:
    """Compare the gradient of each wanted value with the slope along a random direction of its own."""
    rng = np.random.default_rng(5)
    whole = with_seed(graph)
    (out,) = graph.outputs
    backward, gradients = append_backward(whole, {out: "seed"}, wanted)
    inputs = {n: rng.standard_normal(whole.values[n].shape).astype(np.float32) for n in whole.inputs}
    found = backward.reference(inputs)
    everything = {**inputs, **graph.weights}
    for name in wanted:
        assert backward.values[gradients[name]].shape == graph.values[name].shape
        direction = rng.standard_normal(graph.values[name].shape)

        def loss(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            given = {n: np.asarray(everything[n], np.float64) for n in (*graph.inputs, *graph.weights)}
            given[name] = given[name] + step * direction
            values = graph._compute_values(given, lambda problem, tensors: problem.evaluated(tensors))
            return float(np.vdot(values[out], inputs["seed"]))

        slope = (loss(STEP) - loss(-STEP)) / (2 * STEP)
        said = float(np.vdot(found[gradients[name]], direction))
        size = float(np.linalg.norm(found[gradients[name]]) * np.linalg.norm(direction))
        assert abs(slope - said) <= 1e-7 * size, f"{name}: {said} is not the slope {slope}"
    return backward


def branching() -> Graph:
    """A ReLU that two nodes read, one of them a pool, as on UNet's way down; a stride; a bias that is clipped."""
    net = Builder("branching")
    x = net.input("image", 3, 2, 9, 7)
    a = net.relu(net.conv2d(x, 4, 3, padding=1, name="conv1"), name="relu1")
    b = net.relu(net.conv2d(net.maxpool2d(a, 3, 2, name="pool"), 5, 3, padding=1, name="conv2"), name="relu2")
    c = net.relu(net.conv2d(a, 5, 3, stride=2, name="conv3"), name="relu3")
    d = net.elementwise("mul", b, c, name="product")
    return net.graph(net.linear(net.flatten(net.avgpool2d(d, 2, 1, name="mean")), 6, name="scores"))


def dropping() -> Graph:
    """Dropout, whose mask the gradient draws again."""
    net = Builder("dropping")
    a = net.relu(net.linear(net.input("image", 3, 8), 31, name="fc1"), name="relu1")
    return net.graph(net.linear(net.dropout(a, name="drop"), 5, name="scores"))


def residual() -> Graph:
    """Two residual blocks: the shortcut of the first has a batch norm, too, and the second one's is the identity."""
    net = Builder("residual")
    x = net.relu(net.conv2d(net.input("image", 2, 2, 6, 5), 4, 3, padding=1, name="conv1"), name="relu1")
    a = net.batchnorm2d(net.conv2d(x, 3, 3, padding=1, name="conv2"), name="norm2")
    b = net.batchnorm2d(net.conv2d(x, 3, 1, name="shortcut"), name="norm")
    c = net.relu(net.elementwise("add", a, b, name="sum1"), name="relu2")
    d = net.batchnorm2d(net.conv2d(c, 3, 3, padding=1, name="conv3"), name="norm3")
    e = net.elementwise("add", d, c, name="sum2")
    return net.graph(net.linear(net.flatten(net.avgpool2d(e, 2, 1, name="mean")), 4, name="scores"))


NETWORKS: dict[str, tuple[Callable[[], Graph], str]] = {
    "lenet": (lambda: lenet(batch=3), "cross_entropy"),
    "branching": (branching, "cross_entropy"),
    "dropping": (dropping, "cross_entropy"),
    "residual": (residual, "cross_entropy"),
    "unet": (lambda: unet(batch=2, size=12, base=3, levels=2), "binary_cross_entropy"),
}


def step(name: str, **recipe: object) -> Training:
    make, loss = NETWORKS[name]
    network = make()
    data = random_data(network, 2 * network.values["image"].shape[0], loss)
    return step_of(network, Recipe(loss=loss, **recipe), data)  # type: ignore[arg-type]


def check_the_loss() -> None:
    """By NumPy, of the pictures that come first."""
    network = lenet(batch=3)
    data = random_data(network, 6)
    given = {"image": data.images[:3].astype(np.float64)}
    given |= {n: a.astype(np.float64) for n, a in network.weights.items()}
    scores = network._compute_values(given, lambda problem, tensors: problem.evaluated(tensors))[network.outputs[0]]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wanted = -logs[np.arange(3), data.targets[:3]].mean()
    found = step("lenet").graph.reference({})["loss"][0]
    assert found == pytest.approx(wanted, rel=1e-12), f"the loss is {found}; of the network as it infers it is {wanted}"


def check_slopes_of_a_step(name: str) -> None:
    """Each parameter along a random direction, through the whole step's float64 reference."""
    training = step(name, steps=2)
    graph = training.graph
    exact = graph._float64_values({})

    def loss(arena: np.ndarray) -> float:
        values = graph._compute_values(
            {**exact, "parameters": arena}, lambda problem, tensors: problem.evaluated(tensors)
        )
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
        assert min(abs(slope - said) for slope in slopes) <= allowed, f"{parameter}: {said} is not the slope {slopes}"


def check_the_optimizer_waits(dtype: str = "f32", arena: str = "parameters") -> None:
    """Also where nodes run in parallel: the order of the list alone does not count there."""
    graph = training_graph(lenet(batch=2), Recipe(dtype=dtype), 4).graph
    waits = set(graph.waits_for("optimizer"))
    readers = {n.name for n in graph.nodes if any(graph.base(v) == arena for v in n.inputs.values())}
    writers = {n.name for n in graph.nodes if any(graph.base(v) == "gradients" for v in n.outputs.values())}
    missing = sorted((readers | writers) - {"optimizer"} - waits)
    assert not missing, f"the optimizer does not wait for {', '.join(missing)}"
    assert len(readers) > 5 and len(writers) == 5
    assert set(graph.waits_for("fc5.linear_wgrad")) & {"fc4", "loss"} == {"fc4", "loss"}
