"""The memory plan: nothing that is live at once overlaps, checked by running networks in one arena of bytes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.passes import apply_passes
from opbench.graph.zoo import NETWORKS
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT, Arrays
from opbench.networks.plan.memory import MemoryPlan, plan_memory
from support.builders.random_networks import inputs_of, networks
from support.checks.errors import refuses, refuses_name


def run_in_arena(graph: Graph, plan: MemoryPlan, spaces: dict[str, int], order: list[int]) -> tuple[Arrays, Arrays]:
    """Outputs and inputs as they lie in the arena after the nodes ran in this order, workspaces overwritten."""
    arena = np.full(plan.peak_bytes, 0xA5, np.uint8)
    weights = {name: array.astype(np.float64) for name, array in graph.weights.items()}

    def lies(name: str) -> np.ndarray:
        value, base = graph.values[name], graph.base(name)
        if base in weights:
            return weights[base].reshape(value.shape)
        return arena[plan.offsets[base] :][: value.nbytes].view(np.float32).reshape(value.shape)

    for name, array in inputs_of(graph).items():
        lies(name)[...] = array
    for node in (graph.nodes[i] for i in order):
        given = {
            tensor.name: lies(node.inputs[tensor.name]).reshape(tensor.shape) for tensor in node.problem.input_tensors()
        }
        if node.name in plan.workspaces:
            arena[plan.workspaces[node.name] :][: spaces[node.name]] = 0xEE
        exact = node.problem.reference(**{name: array.astype(np.float64) for name, array in given.items()})
        out = lies(next(iter(node.outputs.values())))
        out[...] = exact.reshape(out.shape)
    return {name: lies(name) for name in graph.outputs}, {name: lies(name) for name in graph.inputs}


def some_order(graph: Graph, rng: random.Random) -> list[int]:
    """Any order that the edges of the graph allow."""
    todo, done, order = list(range(len(graph.nodes))), set(graph.inputs) | set(graph.weights), []
    while todo:
        ready = [i for i in todo if {graph.base(name) for name in graph.nodes[i].inputs.values()} <= done]
        order.append(rng.choice(ready))
        todo.remove(order[-1])
        done |= set(graph.nodes[order[-1]].outputs.values())
    return order


@settings(max_examples=150)
@given(graph=networks(14), seed=st.integers(0, 99), parallel=st.booleans())
def test_a_network_run_in_the_arena_gives_its_outputs(graph: Graph, seed: int, parallel: bool) -> None:
    rng = random.Random(seed)
    spaces = {node.name: rng.choice([0, 100, 5000]) for node in graph.nodes if rng.random() < 0.3}
    plan = plan_memory(graph, spaces, parallel=parallel)
    assert plan.lower_bound_bytes <= plan.peak_bytes <= plan.naive_bytes
    assert all(offset % WORKSPACE_ALIGNMENT == 0 for offset in (*plan.offsets.values(), *plan.workspaces.values()))
    assert plan.workspaces.keys() == {name for name, size in spaces.items() if size}
    apart = Graph(graph.name, graph.values, graph.nodes, graph.inputs, graph.outputs, graph.weights)
    alone = MemoryPlan(stacked(apart), {}, 1 << 20, 0, 0)
    expected, given_inputs = run_in_arena(apart, alone, {}, list(range(len(graph.nodes))))
    order = some_order(graph, rng) if parallel else list(range(len(graph.nodes)))
    outputs, inputs = run_in_arena(graph, plan, spaces, order)
    for name in graph.outputs:
        np.testing.assert_array_equal(outputs[name], expected[name], err_msg=name)
    for name in graph.inputs:
        np.testing.assert_array_equal(inputs[name], given_inputs[name], err_msg=name)


def stacked(graph: Graph) -> dict[str, int]:
    """Every value behind the one before."""
    offsets, end = {}, 0
    for name, value in graph.values.items():
        if not value.of and name not in graph.weights:
            offsets[name] = end
            end += (value.nbytes + 3) // 4 * 4
    return offsets


def test_a_chain_needs_its_input_and_two_buffers_at_a_time() -> None:
    net = Builder("chain")
    x = net.input("x", 1, 4, 16, 16)
    for _ in range(5):
        x = net.relu(x)
    graph = net.graph(x)
    size = 4 * 4 * 16 * 16
    plan = plan_memory(graph)
    assert (plan.peak_bytes, plan.naive_bytes, plan.lower_bound_bytes) == (3 * size, 6 * size, 3 * size)
    with_space = plan_memory(graph, {"relu3": 1})
    assert with_space.peak_bytes == with_space.lower_bound_bytes == 3 * size + WORKSPACE_ALIGNMENT


def test_branches_that_may_run_at_once_share_nothing() -> None:
    net = Builder("branches")
    x = net.input("x", 1, 1, 8, 8)
    one, two = net.relu(net.relu(x, name="a1"), name="a2"), net.relu(net.relu(x, name="b1"), name="b2")
    graph = net.graph(net.elementwise("add", one, two))
    sequential, parallel = plan_memory(graph), plan_memory(graph, parallel=True)
    assert (sequential.peak_bytes, parallel.peak_bytes) == (4 * 256, 5 * 256)
    assert len({parallel.offsets[name] for name in ("x", "a1", "b1", "a2", "b2")}) == 5


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_come_near_the_lower_bound(name: str) -> None:
    small = {"unet": {"size": 64, "base": 8}, "gpt2": {"vocabulary": 1000, "layers": 3}}
    graph, _ = apply_passes(NETWORKS[name](batch=4, **small.get(name, {})))
    plan = plan_memory(graph)
    assert plan.peak_bytes <= 1.05 * plan.lower_bound_bytes
    assert plan.peak_bytes < 0.8 * plan.naive_bytes


def test_a_workspace_belongs_to_a_node() -> None:
    graph = NETWORKS["lenet"]()
    with refuses_name("node", "conv9"):
        plan_memory(graph, {"conv9": 100})
    with refuses("not-allowed", "conv1", value=-1):
        plan_memory(graph, {"conv1": -1})


def test_without_sharing_no_two_buffers_overlap() -> None:
    graph = apply_passes(NETWORKS["lenet"]())[0]
    spaces = {graph.nodes[0].name: 1000}
    plan = plan_memory(graph, spaces, share=False)
    sizes = {name: round_up(graph.values[name].nbytes, WORKSPACE_ALIGNMENT) for name in plan.offsets}
    places = sorted([(plan.offsets[name], size) for name, size in sizes.items()] + [(plan.workspaces["conv1"], 1024)])
    assert all(at + size <= then for (at, size), (then, _) in itertools.pairwise(places))
    assert plan.peak_bytes == plan.naive_bytes > plan_memory(graph, spaces).peak_bytes
