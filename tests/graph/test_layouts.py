"""Layouts: a rewritten network gives the same outputs, and the choice is the cheapest of all."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import allowed_layouts, with_layouts, works_on_images
from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.training_step import with_layouts_of
from opbench.graph.values import CONVERSION
from opbench.graph.zoo import NETWORKS
from opbench.kernels.operator import Operator
from opbench.networks.plan.layout_choice import choose_layouts
from support.builders.random_networks import assert_same_outputs, networks
from support.checks.errors import refuses, refuses_name


def conversions(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.operator == CONVERSION]


@settings(max_examples=150)
@given(graph=networks(), data=st.data())
def test_any_layouts_give_the_same_outputs(graph: Graph, data: st.DataObject) -> None:
    layouts = {
        node.name: data.draw(st.sampled_from(allowed_layouts(graph, node)))
        for node in graph.nodes
        if works_on_images(graph, node) and data.draw(st.booleans())
    }
    after = with_layouts(graph, layouts)
    assert_same_outputs(graph, after)
    for name, layout in layouts.items():
        assert after.node(name).problem.axes.get("layout", layout) == layout
    again = with_layouts(apply_passes(graph)[0], {})
    assert not conversions(again)


def made_up(problem: Operator, seed: int, conversion: int) -> float | None:
    """A cost of a few nanoseconds that depends on the problem; some layouts of some problems are not there."""
    digest = zlib.crc32(f"{seed}{problem.name}{problem}".encode())
    if problem.name == CONVERSION:
        return (digest % 8) * conversion * 1e-9
    return None if problem.axes.get("layout") == "nhwc" and digest % 5 == 0 else (digest % 16) * 1e-9


@settings(max_examples=80)
@given(graph=networks(7), seed=st.integers(0, 1000), conversion=st.sampled_from([0, 1, 3]))
def test_no_other_choice_costs_less(graph: Graph, seed: int, conversion: int) -> None:
    def total(layouts: dict[str, str]) -> float:
        costs = [made_up(node.problem, seed, conversion) for node in with_layouts(graph, layouts).nodes]
        return sum(np.inf if cost is None else cost for cost in costs)

    chosen = choose_layouts(graph, lambda problem: made_up(problem, seed, conversion))
    nodes = {node.name: allowed_layouts(graph, node) for node in graph.nodes if works_on_images(graph, node)}
    assert chosen.keys() == nodes.keys()
    least = min(total(dict(zip(nodes, some, strict=True))) for some in itertools.product(*nodes.values()))
    assert total(chosen) == pytest.approx(least, abs=1e-15)


def test_a_network_in_nhwc_converts_nothing_where_nothing_need_be() -> None:
    graph, _ = apply_passes(NETWORKS["alexnet"]())
    images = {node.name: "nhwc" for node in graph.nodes if node.operator != "linear"}
    after = with_layouts(graph, images)
    assert conversions(after) == []  # one channel in, and the columns of fc6 permuted
    assert after.values["image.nhwc"].of == "image"
    inputs = {"x": "flatten1.nhwc", "weight": "fc6.weight.nhwc_256x5x5", "bias": "fc6.bias"}
    assert after.node("fc6").inputs == inputs
    assert after.weights["conv2.weight.nhwc"].shape == (256, 5, 5, 96)


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    net = Builder("shared")
    x = net.conv2d(net.input("image", 1, 2, 4, 4), 3, 1, name="first")
    a, b = net.conv2d(x, 2, 1, name="a"), net.conv2d(x, 2, 1, name="b")
    graph = net.graph(net.elementwise("add", a, b, name="sum"))
    after = with_layouts(graph, {"a": "nhwc", "b": "nhwc"})
    assert conversions(after) == ["first.to_nhwc", "sum.to_nchw"]
    assert after.node("sum").inputs == {"a": "a.nhwc", "b": "b.nhwc"}  # element by element: it follows
    assert conversions(with_layouts(graph, {"a": "nhwc"})) == ["first.to_nhwc", "b.to_nhwc", "sum.to_nchw"]
    assert conversions(with_layouts(graph, {"a": "nhwc", "sum": "nchw"})) == ["first.to_nhwc", "a.to_nchw"]


def test_both_layouts_in_one_dtype() -> None:
    graph, _ = apply_passes(NETWORKS["unet"](size=16, base=2, levels=2))
    half = to_dtype(graph, "bf16")
    after = with_layouts(half, {node.name: "nhwc" for node in half.nodes[::2]})
    assert {node.problem.storage for node in after.nodes} == {"bf16"}
    assert_same_outputs(half, after)


def test_a_layout_that_orders_tokens_is_not_one_of_images() -> None:
    net = Builder("tokens")
    x = net.input("x", 3, 4)
    axes = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 3, "keys": 3, "depth": 2, "layout": "qkv"}
    packed = net.view(net.linear(x, 12, name="project"), (1, 3, 3, 2, 2), name="packed")
    out = net.node("attention", "attention", axes, {"qkv": packed})
    graph = net.graph(net.linear(net.view(out, (3, 4), name="rows"), 4, name="back"))
    node = graph.node("attention")
    assert node.layouts == {}
    assert allowed_layouts(graph, node) == ("nchw",)
    chosen = choose_layouts(graph, lambda problem: 1.0)
    assert with_layouts(graph, chosen).node("attention").problem == node.problem
    assert with_layouts_of(graph, "nhwc").node("attention").problem == node.problem


def test_rows_of_pixels_are_a_view_of_an_image_in_nhwc() -> None:
    net = Builder("attending")
    x = net.conv2d(net.input("image", 2, 3, 4, 2), 8, 3, padding=1, name="first")
    rows = net.linear(net.flatten_pixels(x, name="pixels"), 8, name="project")
    back = net.elementwise("add", net.image(rows, x, name="back"), x, name="sum")
    graph = net.graph(net.conv2d(back, 4, 1, name="last"))
    assert conversions(graph) == ["pixels", "back"]
    for layouts, wanted in (
        ({"first": "nhwc", "last": "nhwc"}, ["image.to_nhwc", "last.to_nchw"]),
        ({"sum": "nchw"}, ["first.to_nhwc", "back.to_nchw"]),
        (choose_layouts(graph, lambda problem: 1.0), ["first.to_nhwc", "sum.to_nchw"]),
    ):
        after = with_layouts(graph, layouts)
        assert_same_outputs(graph, after)
        assert len(conversions(after)) == len(wanted)
        if layouts.keys() <= {"first", "last", "sum"}:
            assert conversions(after) == wanted
    with refuses("other-shape", "bad", value=(16, 8), allowed=(1, 3, 4, 2)):
        net.image(rows, net.input("other", 1, 3, 4, 2), name="bad")


def test_what_cannot_be_is_refused() -> None:
    graph = NETWORKS["lenet"]()
    with refuses("other-layout", "fc3", value="nhwc", allowed="nchw"):
        with_layouts(graph, {"fc3": "nhwc"})
    with refuses_name("layout", "nhcw", where="conv1"):
        with_layouts(graph, {"conv1": "nhcw"})
    with refuses_name("node", "conv9"):
        with_layouts(graph, {"conv9": "nhwc"})
    with refuses("layouts-chosen"):
        with_layouts(with_layouts(graph, {"conv2": "nhwc"}), {})
    with refuses("no-known-cost", "conv1"):
        choose_layouts(graph, lambda problem: None)

    def apart(problem: Operator) -> float | None:
        """Convolutions in nhwc only, and nothing converts."""
        nchw = problem.axes.get("layout") == "nchw" and problem.name == "conv2d"
        return None if nchw or problem.name == CONVERSION else 1.0

    net = Builder("apart")
    image = net.input("image", 1, 3, 4, 4)
    with refuses("no-layouts", "apart"):
        choose_layouts(net.graph(net.conv2d(image, 2, 1)), apart)
