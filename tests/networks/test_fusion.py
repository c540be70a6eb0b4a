"""Taking fused nodes apart: the same numbers, where it pays, and where memory allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.graph.graph import Graph
from opbench.graph.passes import apply_passes
from opbench.graph.zoo import NETWORKS, unet
from opbench.kernels.operator import Operator
from opbench.networks.plan.choosing import (
    apply_enabled_passes,
    convert_layouts,
    given_plan,
    plan_network,
    split_slow_fusions,
)
from opbench.networks.plan.fusion import cheaper_fusion, fused_nodes, fused_problems, split_fused
from opbench.networks.plan.memory import live_bytes
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import TimedCase, candidate_cases, save_plan
from opbench.networks.plan.running import run_network
from support.builders.random_networks import assert_same_outputs, inputs_of

SIZES = {"batch": 2, "size": 16, "base": 4, "levels": 2}
OPTIONS = NetOptions("unet", SIZES, backend="cpu")


def fused() -> Graph:
    return apply_enabled_passes(unet(**SIZES), OPTIONS)[0]


def results(graph: Graph, **times: float) -> dict[tuple[str, str], list[TimedCase]]:
    """Every case that could serve the graph or its parts, with the time of its operator, 1 µs if not given."""
    found: dict[tuple[str, str], list[TimedCase]] = {}
    for layout in ("nchw", "nhwc"):
        laid, _ = convert_layouts(graph, NetOptions("unet", layout=layout), {})
        for whole in (laid, split_fused(laid, fused_nodes(laid))):
            for case in candidate_cases(whole, "f32"):
                seconds = times.get(case.problem.name, 1e-6)
                entry = TimedCase(case.name, "f32", seconds, 0.99 * seconds, 1.01 * seconds, False, "run r")
                found.setdefault((case.problem.name, str(case.problem)), []).append(entry)
    return found


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_parts_compute_what_the_fused_node_does(layout: str) -> None:
    graph = convert_layouts(fused(), NetOptions("unet", layout=layout), {})[0]
    assert fused_nodes(graph) == ["up1a", "up0a"]
    apart = split_fused(graph, ["up0a"])
    assert [n.operator for n in apart.nodes if n.name.startswith("up0a")] == ["upsample_concat", "conv2d"]
    assert apart.values["up0a.joined"].layout == layout and fused_nodes(apart) == ["up1a"]
    inputs = inputs_of(graph)
    one, other = graph.reference(inputs), apart.reference(inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "sizes", "operators"),
    [
        ("resnet18", {"size": 32, "base": 2, "classes": 3}, {"conv2d", "elementwise"}),
        (
            "mobilenetv3",
            {"size": 32, "width": 10, "classes": 3},
            {"conv2d", "depthwise_conv2d", "linear", "elementwise"},
        ),
        ("gpt2", {"tokens": 8, "layers": 2, "heads": 1, "width": 8, "vocabulary": 9}, {"linear", "elementwise"}),
    ],
)
def test_a_sum_or_an_activation_is_split_from_its_product(
    name: str, sizes: dict[str, int], operators: set[str]
) -> None:
    graph, _ = apply_passes(NETWORKS[name](**sizes))
    names = fused_nodes(graph)
    apart = split_fused(graph, names)
    assert names and fused_nodes(apart) == [] and len(apart.nodes) == len(graph.nodes) + len(names)
    assert {n.operator for n in apart.nodes if n.name.removesuffix(".product") in names} == operators
    assert_same_outputs(graph, apart)


def test_what_is_no_fusion_has_no_parts() -> None:
    assert {node.operator for node in fused().nodes if fused_problems(node.problem)} == {"upsample_concat_conv2d"}


def test_a_problem_costs_what_its_cheaper_way_costs() -> None:
    problem = fused().node("up0a").problem
    costs: dict[str, float | None] = {"upsample_concat_conv2d": 5.0, "upsample_concat": 1.0, "conv2d": 3.0}

    def cost(problem: Operator) -> float | None:
        return costs[problem.name]

    assert cheaper_fusion(cost)(problem) == 4.0
    costs["conv2d"] = 4.5
    assert cheaper_fusion(cost)(problem) == 5.0
    costs["conv2d"] = None
    assert cheaper_fusion(cost)(problem) == 5.0
    costs |= {"upsample_concat_conv2d": None, "conv2d": 4.5}
    assert cheaper_fusion(cost)(problem) == 5.5
    costs["upsample_concat"] = None
    assert cheaper_fusion(cost)(problem) is None


@pytest.mark.parametrize(("fused_s", "apart"), [(2.1e-6, True), (2.02e-6, False), (1.5e-6, False)])
def test_nodes_are_taken_apart_where_that_is_surely_faster(fused_s: float, apart: bool) -> None:
    """Parts of 1 µs each, all within 1 %: 2.02 µs are not to be told from them."""
    graph = convert_layouts(fused(), NetOptions("unet", layout="nchw"), {})[0]
    split, said = split_slow_fusions(graph, OPTIONS, results(fused(), upsample_concat_conv2d=fused_s))
    assert (fused_nodes(split) == []) == apart
    assert len(said.notes) == (2 if apart else 0)
    if apart:
        assert said.notes[0] == "up1a: split, because its parts take 2.00 µs, fused they take 2.10 µs"


def test_without_results_nothing_is_taken_apart() -> None:
    graph, _ = split_slow_fusions(convert_layouts(fused(), OPTIONS, {})[0], OPTIONS, {})
    assert fused_nodes(graph) == ["up1a", "up0a"]


def test_a_limit_on_memory_keeps_a_node_fused() -> None:
    graph = convert_layouts(fused(), NetOptions("unet", layout="nchw"), {})[0]
    slow = results(fused(), upsample_concat_conv2d=9e-6)
    room = max(live_bytes(split_fused(graph, ["up1a"])).values())
    assert room < max(live_bytes(split_fused(graph, ["up0a"])).values()), "or the test shows nothing"
    split, said = split_slow_fusions(graph, NetOptions("unet", memory_bytes=room), slow)
    assert fused_nodes(split) == ["up0a"]
    assert said.notes[1].startswith("up0a: stays fused, because the memory limit leaves no room")


def test_a_plan_repeats_layouts_and_fusion(tmp_path: Path) -> None:
    """As the README's commands do it: a run chooses, its plan.json says all that the next one needs."""
    chosen = results(fused(), upsample_concat_conv2d=9e-6)
    for key in chosen:
        if "layout=nhwc" in key[1] and key[0] != "upsample_concat_conv2d":
            chosen[key] = [TimedCase(e.case, e.precision, 1e-7, 1e-7, 1e-7, False, e.source) for e in chosen[key]]
    graph, plan, said = plan_network(fused(), OPTIONS, chosen, "", 132)
    assert fused_nodes(graph) == [] and any("nodes work in nhwc" in s.notes[0] for s in said if s.notes)
    assert any(node.problem.axes.get("layout") == "nhwc" for node in graph.nodes)
    save_plan(plan, tmp_path / "plan.json")
    followed = NetOptions("unet", SIZES, plan=tmp_path / "plan.json")
    again, same, _ = plan_network(fused(), followed, {}, "", 132, plan=given_plan(fused(), followed))
    assert [(n.name, str(n.problem)) for n in again.nodes] == [(n.name, str(n.problem)) for n in graph.nodes]
    assert same.cases(again) == plan.cases(graph)
    record: dict[str, Any] = run_network(
        NetOptions("unet", SIZES, backend="cpu", plan=tmp_path / "plan.json", out=tmp_path / "out")
    )
    assert record.check.right and [n.name for n in record.nodes] == [n.name for n in graph.nodes]
