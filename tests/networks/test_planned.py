"""A network in three lines: built, planned, run; outputs against NumPy and the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import opbench
from opbench import Builder, UsageError
from opbench.graph.graph import Graph
from opbench.networks.plan.output_check import allowed_norm
from support.builders.random_networks import inputs_of, networks
from support.builders.small_networks import residual

SOME = settings(
    max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@SOME
@given(graph=networks(), seed=st.integers(0, 9))
def test_outputs_of_a_random_network_are_those_of_the_reference(graph: Graph, seed: int) -> None:
    inputs = inputs_of(graph, seed)
    wanted = graph.reference_outputs(inputs)
    with opbench.plan(graph, backend="cpu") as plan:
        outputs = plan.run(inputs)
        allowed = allowed_norm(plan.network.graph, plan.network.cases) if plan.network.graph.nodes else 0.0
    assert outputs.keys() == wanted.keys()
    for name, out in outputs.items():
        assert out.shape == wanted[name].shape and out.dtype == np.float32
        assert np.linalg.norm(out - wanted[name]) <= allowed * max(np.linalg.norm(wanted[name]), 1e-30)


@SOME
@given(
    n=st.integers(1, 3),
    c=st.integers(1, 4),
    hidden=st.integers(1, 9),
    k=st.integers(1, 5),
    size=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_outputs_of_a_perceptron_are_those_of_numpy(n: int, c: int, hidden: int, k: int, size: int, seed: int) -> None:
    net = Builder("perceptron", seed=seed)
    x = net.input("image", n, c, size, size)
    graph = net.graph(net.linear(net.relu(net.linear(net.flatten(x), hidden, name="a")), k, name="b"))
    image = np.random.default_rng(seed).standard_normal((n, c, size, size), np.float32)
    weights = {name: array.astype(np.float64) for name, array in graph.weights.items()}
    (wa, ba), (wb, bb) = ([weights[v] for v in graph.node(node).inputs.values() if v in weights] for node in "ab")
    rows = np.maximum(image.reshape(n, -1).astype(np.float64) @ oriented(wa, hidden) + ba, 0)
    with opbench.plan(graph, backend="cpu") as plan:
        (out,) = plan.run(image).values()
    np.testing.assert_allclose(out, rows @ oriented(wb, k) + bb, rtol=1e-4, atol=1e-4)


def oriented(weight: np.ndarray, outputs: int) -> np.ndarray:
    """A linear layer's weight with its outputs along the last axis."""
    return weight.T if weight.shape[0] == outputs else weight


def test_a_shipped_network_takes_three_lines() -> None:
    graph = opbench.network("lenet", batch=2)
    plan = opbench.plan(graph, backend="cpu")
    result = plan.run(inputs_of(graph))
    assert result["fc5"].shape == (2, 10)
    assert set(plan.plan.choices) == {node.name for node in plan.network.graph.nodes} and plan.notes
    plan.close()


def test_options_of_net_run_are_keywords() -> None:
    graph = residual()
    with opbench.plan(graph, backend="cpu", without=["fuse_relu"], layout="nhwc", precision="bf16") as plan:
        assert plan.plan.precision == "bf16"
        outputs = plan.run(inputs_of(graph))
    assert outputs.keys() == set(graph.outputs)
    for change in ({"layout": "nwhc"}, {"precision": "f8"}, {"without": ["fuse"]}, {"leave_out": ["a"]}):
        with pytest.raises(UsageError):
            opbench.plan(graph, backend="cpu", **change)


def test_wrong_inputs_and_names_are_refused() -> None:
    with pytest.raises(UsageError):
        opbench.network("lenet", size=3)
    with pytest.raises(UsageError):
        opbench.network("lenot")
    graph = opbench.network("lenet")
    with opbench.plan(graph, backend="cpu") as plan:
        for wrong in (np.zeros((1, 1, 28, 27), np.float32), np.zeros((1, 1, 28, 28)), {"picture": np.zeros(3)}):
            with pytest.raises(UsageError):
                plan.run(wrong)
