"""The backward pass of small networks against differences of the whole network's float64 reference."""

from __future__ import annotations

from opbench.graph.build import Builder
from opbench.graph.gradients import append_backward
from support.checks.errors import refuses
from support.checks.graphs import check_slopes, with_seed


def test_a_value_with_several_readers_has_the_sum_of_their_gradients() -> None:
    net = Builder("several")
    x = net.input("x", 2, 3, 4, 5)
    w = net.weight("w", (2, 3, 4, 5), 1.0)
    a = net.elementwise("mul", x, w)
    b = net.elementwise("add", a, w)
    c = net.elementwise("mul", a, b)
    graph = net.graph(net.elementwise("add", c, a))
    backward = check_slopes(graph, ["x", "w"])
    sums = [node.name for node in backward.nodes if node.name.endswith(".add")]
    assert sums == ["d.mul1.sum1.add", "d.mul1.add", "d.w.add"]


def test_a_node_that_reads_a_value_twice_gives_it_both_gradients() -> None:
    net = Builder("twice")
    x = net.input("x", 7)
    check_slopes(net.graph(net.elementwise("mul", x, x)), ["x"])


def test_views_take_the_gradient_of_their_base() -> None:
    net = Builder("views")
    x = net.input("x", 2, 3, 2, 2)
    y = net.elementwise("mul", x, net.weight("w", (2, 3, 2, 2), 1.0))
    flat = net.flatten(y)
    again = net.elementwise("mul", flat, net.weight("v", (2, 12), 1.0))
    check_slopes(net.graph(net.elementwise("add", again, net.flatten(y, name="flat2"))), ["x", "w", "v"])


def test_parts_of_an_image_join_their_gradients() -> None:
    net = Builder("joined")
    a, b = net.input("a", 2, 3, 4, 5), net.input("b", 2, 2, 4, 5)
    check_slopes(
        net.graph(net.concat(net.elementwise("mul", a, net.weight("w", (2, 3, 4, 5), 1.0)), b)), ["w", "a", "b"]
    )


def test_what_is_not_wanted_costs_no_node() -> None:
    net = Builder("frozen")
    x = net.input("x", 9)
    y = net.elementwise("mul", x, net.weight("w", (9,), 1.0))
    graph = with_seed(net.graph(net.elementwise("mul", y, net.weight("v", (9,), 1.0))))
    backward, _ = append_backward(graph, {graph.outputs[0]: "seed"}, ["v"])
    assert len(backward.nodes) == len(graph.nodes) + 1


def test_what_has_no_rule_and_what_no_loss_depends_on_is_refused() -> None:
    net = Builder("none")
    x = net.input("x", 9)
    w = net.weight("w", (9,), 1.0)
    graph = with_seed(net.graph(net.elementwise("div", x, w, name="quotient")))
    with refuses("no-gradient", "elementwise", value="b"):
        append_backward(graph, {graph.outputs[0]: "seed"}, ["w"])
    net = Builder("apart")
    graph = with_seed(net.graph(net.elementwise("add", net.input("x", 9), net.weight("w", (9,), 1.0))))
    with refuses("no-gradient-path", "seed"):
        append_backward(graph, {graph.outputs[0]: "seed"}, ["seed"])
