"""Graphs and their builder: what does not fit is refused by name, and the reference is what NumPy says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.values import Node, Value, fits_flat_axes
from opbench.graph.zoo import FOR_TRAINING, NETWORKS, lenet, unet
from opbench.kernels.tensors import Arrays
from support.builders.random_networks import inputs_of, networks
from support.checks.errors import Refusal, message_of, refuses, refuses_name, same_messages
from support.common import CATALOG


def relu(name: str, x: str, out: str, n: int = 6) -> Node:
    return Node(name, "relu", CATALOG.operator("relu").from_axes({"n": n}), {"x": x}, {"out": out})


def small(nodes: tuple[Node, ...], outputs: tuple[str, ...] = ("b",), **changes: object) -> Graph:
    """Values a (an input), b and c of shape (2, 3), d of (7,), a weight w and a view v of b."""
    values = {name: Value(name, (2, 3)) for name in "abc"} | {"d": Value("d", (7,)), "w": Value("w", (2, 3))}
    values["v"] = Value("v", (6,), of="b")
    graph = {"values": values, "inputs": ("a",), "weights": {"w": np.zeros((2, 3), np.float32)}, **changes}
    return Graph("small", nodes=nodes, outputs=outputs, **graph)  # type: ignore[arg-type]


def test_nodes_are_put_in_an_order_in_which_they_can_run() -> None:
    graph = small((relu("second", "b", "c"), relu("first", "a", "b")), ("c", "v"))
    assert [node.name for node in graph.nodes] == ["first", "second"]
    assert graph.producer("v") is graph.node("first")
    assert [node.name for node in graph.consumers("b")] == ["second"]
    assert graph.producer("a") is None
    result = graph.reference({"a": np.array([[1, -2, 3], [-4, 5, -6]], np.float32)})
    assert result["v"].tolist() == [1, 0, 3, 0, 5, 0]


def a_value(name: str, **changes: object) -> dict[str, Value]:
    """The values of `small` with one changed."""
    values = dict(small((relu("r", "a", "b"),)).values)
    return values | {name: replace(values[name], **changes)}  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[], Graph], Refusal]] = {
    "cycle": (
        lambda: small((relu("r", "c", "b"), relu("s", "b", "c"))),
        Refusal("graph-cycle", "small", value=("r", "s", "r")),
    ),
    "cycle through a view": (lambda: small((relu("r", "v", "b"),)), Refusal("graph-cycle", "small", value=("r", "r"))),
    "two producers": (
        lambda: small((relu("r", "a", "b"), relu("s", "a", "b"))),
        Refusal("two-producers", "s", value="b"),
    ),
    "producer of an input": (
        lambda: small((relu("r", "a", "a"),)),
        Refusal("two-producers", "r", value="a"),
    ),
    "producer of a weight": (
        lambda: small((relu("r", "a", "w"),)),
        Refusal("two-producers", "r", value="w"),
    ),
    "producer of a view": (lambda: small((relu("r", "a", "v"),)), Refusal("two-producers", "r", value="v")),
    "one name twice": (lambda: small((relu("r", "a", "b"), relu("r", "a", "c"))), Refusal("duplicate-name", "r")),
    "nothing produces a value": (lambda: small((relu("r", "c", "b"),)), Refusal("no-producer", "r", value="c")),
    "nothing produces an output": (
        lambda: small((relu("r", "a", "b"),), ("c",)),
        Refusal("no-producer", "outputs", value="c"),
    ),
    "shapes": (
        lambda: small((relu("r", "d", "b"),)),
        Refusal("other-shape", "r", value=(7,), allowed=(6,)),
    ),
    "missing tensor": (
        lambda: small((replace(relu("r", "a", "b"), inputs={}),)),
        Refusal("missing-tensor", "r", value="x"),
    ),
    "dtype": (
        lambda: small((relu("r", "a", "b"),), values=a_value("a", dtype="bf16")),
        Refusal("other-dtype", "r", value="bf16", allowed="f32"),
    ),
    "view of another size": (
        lambda: small((relu("r", "a", "b"),), values=a_value("v", shape=(5,))),
        Refusal("view-does-not-fit", "v", value=0, allowed="b"),
    ),
    "views in a cycle": (
        lambda: small((), ("a",), values=a_value("b", of="v")),
        Refusal("view-cycle", "small", value=("b", "v", "b")),
    ),
    "input that is a view": (
        lambda: small((), ("a",), inputs=("a", "v")),
        Refusal("view-of-input", "v"),
    ),
    "input twice": (lambda: small((), ("a",), inputs=("a", "a")), Refusal("duplicate-name", "a")),
    "weight of another shape": (
        lambda: small((), ("a",), weights={"w": np.zeros((3, 2), np.float32)}),
        Refusal("other-shape", "w", value=(3, 2), allowed=(2, 3)),
    ),
    "weight of another dtype": (
        lambda: small((), ("a",), weights={"w": np.zeros((2, 3))}),
        Refusal("other-dtype", "w", value="float64", allowed="float32"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_that_makes_no_sense_is_refused(case: str) -> None:
    build, refusal = REFUSED[case]
    with refuses(refusal):
        build()


def test_the_messages_about_graphs(tmp_path: Path) -> None:
    same_messages("graphs", {case: message_of(build) for case, (build, _) in REFUSED.items()}, tmp_path)


UNKNOWN = [
    (lambda: small((relu("r", "aa", "b"),)), "r", "value", "aa"),
    (lambda: small((relu("r", "a", "b"),), ("x",)), "small: the outputs", "value", "x"),
    (lambda: small((), ("a",), inputs=("a", "x")), "small: the inputs", "value", "x"),
    (lambda: small((), ("a",), values=a_value("v", of="x")), "v", "value", "x"),
    (lambda: small((replace(relu("r", "a", "b"), inputs={"x": "a", "y": "a"}),)), "r", "tensor", "y"),
]


@pytest.mark.parametrize(("build", "where", "what", "seen"), UNKNOWN)
def test_a_graph_that_names_what_it_lacks_is_refused(
    build: Callable[[], Graph], where: str, what: str, seen: str
) -> None:
    with refuses_name(what, seen, where=where):
        build()


def test_images_in_different_layouts_do_not_meet() -> None:
    add = CATALOG.operator("add").from_axes({"n": 12})
    values = {name: Value(name, (1, 2, 3, 2), layout="nchw" if name != "b" else "nhwc") for name in "abc"}
    node = Node("sum", "add", add, {"a": "a", "b": "b"}, {"out": "c"})
    with refuses("mixed-layouts", "sum", value="nhwc", allowed="nchw"):
        Graph("mixed", values, (node,), ("a", "b"), ("c",), {})
    pool = CATALOG.operator("maxpool2d").from_axes({"n": 1, "c": 2, "h": 3, "w": 2, "window": 1, "stride": 1})
    with refuses("other-layout", "pool", value="nhwc", allowed="nchw"):
        Graph("mixed", values, (Node("pool", "maxpool2d", pool, {"x": "b"}, {"out": "c"}),), ("b",), ("c",), {})


def test_what_counts_as_seen_flat() -> None:
    assert fits_flat_axes((2, 3, 4, 5), (120,))
    assert fits_flat_axes((2, 3, 4, 5), (1, 1, 120))
    assert fits_flat_axes((2, 3, 4, 5), (2, 3, 20))
    assert fits_flat_axes((2, 3, 4, 5), (24, 1, 5))
    assert not fits_flat_axes((2, 3, 4, 5), (3, 2, 20))
    assert not fits_flat_axes((2, 3, 4, 5), (2, 60))
    assert not fits_flat_axes((2, 3), (7,))


def test_inputs_are_checked_before_anything_runs() -> None:
    graph, image = lenet(2), np.zeros((2, 1, 28, 28), np.float32)
    for inputs, refusal in (
        ({}, Refusal("missing-input", "image", allowed=(2, 1, 28, 28))),
        ({"image": image[:1]}, Refusal("other-shape", "image", value=(1, 1, 28, 28), allowed=(2, 1, 28, 28))),
        ({"image": image.astype(np.float64)}, Refusal("other-dtype", "image", value="float64", allowed="float32")),
    ):
        with refuses(refusal):
            graph.reference(inputs)
    with refuses_name("input", "imago", "image"):
        graph.reference({"image": image, "imago": image})


def test_weights_are_replaced_all_or_none() -> None:
    graph = lenet()
    zeros = graph.with_weights({name: np.zeros_like(array) for name, array in graph.weights.items()})
    assert not zeros.reference(inputs_of(graph))["fc5"].any()
    some = {name: array for name, array in graph.weights.items() if name != "fc3.bias"}
    with refuses("missing-weight", "fc3.bias", value=1):
        graph.with_weights(some)
    with refuses("other-shape", "fc3.bias", value=(7,), allowed=(120,)):
        graph.with_weights({**some, "fc3.bias": np.zeros(7)})
    with refuses_name("weight", "fc9.bias"):
        graph.with_weights({**graph.weights, "fc9.bias": np.zeros(7)})


# The builder ------------------------------------------------------------------------------------------------------


def test_the_builder_says_which_node_does_not_fit(tmp_path: Path) -> None:
    net = Builder("wrong")
    x, small, rows = net.input("x", 1, 3, 8, 8), net.input("small", 1, 3, 4, 4), net.input("rows", 2, 5)
    calls: list[tuple[Callable[[], object], Refusal]] = [
        (
            lambda: net.concat(x, small, name="join"),
            Refusal("other-shape", "join", value=(1, 3, 4, 4), allowed=(1, 3, 8, 8)),
        ),
        (
            lambda: net.elementwise("add", x, small, name="sum"),
            Refusal("other-shape", "sum", value=(1, 3, 4, 4), allowed=(1, 3, 8, 8)),
        ),
        (lambda: net.linear(x, 4, name="fc"), Refusal("not-rows", "fc", value=(1, 3, 8, 8))),
        (lambda: net.softmax(x, name="end"), Refusal("not-rows", "end", value=(1, 3, 8, 8))),
        (lambda: net.conv2d(rows, 4, 3, name="conv"), Refusal("not-an-image", "conv", value=(2, 5))),
        (
            lambda: net.conv2d(small, 4, 9, name="wide"),
            Refusal("filter-too-large", "wide", value=(9, 9), allowed=(4, 4)),
        ),
        (lambda: net.elementwise("pow", x, x, name="power"), Refusal("not-allowed", "power", value="pow")),
        (lambda: net.activation("gelu2", x, name="bent"), Refusal("not-allowed", "bent", value="gelu2")),
        (
            lambda: net.activation("swiglu", x, name="gated"),
            Refusal("other-tensors", "gated", value=("a",), allowed=("a", "b")),
        ),
        (
            lambda: net.activation("geglu", x, small, name="narrow"),
            Refusal("other-shape", "narrow", value=small.shape, allowed=x.shape),
        ),
        (lambda: net.input("x", 3), Refusal("duplicate-name", "x")),
        (net.graph, Refusal("no-output", "wrong")),
    ]
    messages = {}
    for call, refusal in calls:
        with refuses(refusal) as raised:
            call()
        messages[str(refusal.subject)] = str(raised.value)
    same_messages("graph_builder", messages, tmp_path)


def test_what_no_output_needs_is_left_out() -> None:
    net = Builder("part")
    x = net.input("x", 1, 2, 4, 4)
    used, unused = net.conv2d(x, 3, 1, name="used"), net.conv2d(x, 3, 1, name="unused")
    graph = net.graph(net.flatten(net.flatten(used)))
    assert [node.name for node in graph.nodes] == ["used"]
    assert sorted(graph.weights) == ["used.bias", "used.weight"]
    assert [node.name for node in net.graph(unused).nodes] == ["unused"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3, 4, 5), (1, 3, 1, 1)),
        ((2, 3, 4, 5), (3, 4, 1)),
        ((2, 3, 4, 5), (5,)),
        ((2, 3, 4, 5), (1,)),
        ((2, 3, 4, 5), (2, 1, 1, 1)),
        ((1, 3, 1, 1), (3, 1, 1)),
        ((4, 6), (6,)),
        ((4, 6), (4, 1)),
        ((1, 1), (1,)),
    ],
)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "add_relu"])
def test_elementwise_broadcasts_as_numpy_does(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    net = Builder("broadcast")
    graph = net.graph(net.elementwise(op, net.input("a", *a), net.input("b", *b), name="out"))
    inputs = inputs_of(graph)
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    ufunc = {**functions, "add_relu": lambda a, b: np.maximum(a + b, 0)}[op]
    np.testing.assert_array_equal(graph.reference(inputs)["out"], ufunc(wide["a"], wide["b"]))


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_weights_are_those_of_pytorch_bit_for_bit(network: str) -> None:
    digests = json.loads((Path(__file__).parent / "torch_weights.json").read_text())[network]
    weights = NETWORKS[network](batch=2).weights
    assert sorted(weights) == sorted(digests)
    for name, array in weights.items():
        assert hashlib.sha256(array.tobytes()).hexdigest() == digests[name], name


def test_the_form_of_diffusion_that_is_trained_computes_the_same() -> None:
    """With the features of the time in one channel more of the images."""
    sizes = {"batch": 2, "size": 8, "base": 32}
    one, other = NETWORKS["diffusion"](**sizes), FOR_TRAINING["diffusion"](**sizes)
    assert one.weights.keys() == other.weights.keys()
    assert all(np.array_equal(array, other.weights[name]) for name, array in one.weights.items())
    inputs = inputs_of(one)
    image = np.zeros((2, 5, 8, 8), np.float32)
    image[:, :4], image[:, 4].reshape(2, -1)[:, :32] = inputs["image"], inputs["time"]
    results = [graph.reference(given)[graph.outputs[0]] for graph, given in ((one, inputs), (other, {"image": image}))]
    np.testing.assert_array_equal(*results)
    for change in ({"size": 7}, {"base": 48}):
        with refuses("not-allowed", next(iter(change)), value=next(iter(change.values()))):
            NETWORKS["diffusion"](**{**sizes, **change})
    with refuses("not-allowed", "base", value=96, allowed=64):
        FOR_TRAINING["diffusion"](**{**sizes, "base": 96})


def test_attention_needs_whole_sequences_and_heads() -> None:
    net = Builder("x")
    rows = net.input("qkv", 6, 24)
    assert net.attention(rows, 2, 3).shape == (6, 8)
    for heads, batch in ((5, 3), (2, 4)):
        with refuses("other-shape", value=(6, 24), allowed=(batch, 3 * heads)):
            net.attention(rows, heads, batch)


def test_inputs_that_are_indices_are_valid_ones() -> None:
    graph = NETWORKS["gpt2"](tokens=40, layers=1, heads=1, width=8, vocabulary=7)
    inputs = graph.make_inputs(3)
    assert inputs["tokens"].dtype == np.int32 and set(np.unique(inputs["tokens"])) == set(range(7))
    assert inputs["places"].shape == (1,) and 0 <= inputs["places"][0] < 40


def test_another_seed_draws_other_weights() -> None:
    def weights(seed: int) -> np.ndarray:
        net = Builder("x", seed=seed)
        return net.graph(net.conv2d(net.input("image", 1, 1, 28, 28), 6, 5, name="conv1")).weights["conv1.weight"]

    np.testing.assert_array_equal(weights(0), lenet().weights["conv1.weight"])
    assert not np.array_equal(weights(0), weights(1))
    assert 0.9 / 5 < np.abs(weights(1)).max() <= 1 / 5


# The reference ----------------------------------------------------------------------------------------------------


def convolved(x: np.ndarray, weight: np.ndarray, padding: int, stride: int = 1) -> np.ndarray:
    """The sum as it is written down, over windows of the padded image."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncpqrs,kcrs->nkpq", windows, weight)


def pooled(x: np.ndarray, window: int, stride: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (window, window), axis=(2, 3))
    return windows[:, :, ::stride, ::stride].max((4, 5))


def test_lenet_is_what_numpy_says() -> None:
    graph = lenet(2)
    inputs = inputs_of(graph)
    w = {name: array.astype(np.float64) for name, array in graph.weights.items()}
    x = inputs["image"].astype(np.float64)
    for name, padding in (("conv1", 2), ("conv2", 0)):
        x = convolved(x, w[f"{name}.weight"], padding) + w[f"{name}.bias"][:, None, None]
        x = pooled(np.maximum(x, 0), 2, 2)
    x = x.reshape(2, -1)
    for name in ("fc3", "fc4", "fc5"):
        x = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        x = np.maximum(x, 0) if name != "fc5" else x
    np.testing.assert_allclose(graph.reference(inputs)["fc5"], x, rtol=1e-12, atol=1e-14)


def test_unet_is_what_numpy_says() -> None:
    graph = unet(batch=2, size=8, base=2, levels=2, channels=3, classes=2)
    inputs = inputs_of(graph)
    w = {name: array.astype(np.float64) for name, array in graph.weights.items()}

    def level(x: np.ndarray, name: str) -> np.ndarray:
        for half in (f"{name}a", f"{name}b"):
            x = convolved(x, w[f"{half}.weight"], 1) + w[f"{half}.bias"][:, None, None]
            part = {key: w[f"{half}.norm.{key}"][:, None, None] for key in ("scale", "shift", "mean", "variance")}
            x = np.maximum((x - part["mean"]) / np.sqrt(part["variance"] + 1e-5) * part["scale"] + part["shift"], 0)
        return x

    down0 = level(inputs["image"].astype(np.float64), "down0")
    down1 = level(pooled(down0, 2, 2), "down1")
    x = level(pooled(down1, 2, 2), "bottom")
    for name, skip in (("up1", down1), ("up0", down0)):
        x = level(np.concatenate([skip, np.kron(x, np.ones((2, 2)))], axis=1), name)
    x = convolved(x, w["head.weight"], 0) + w["head.bias"][:, None, None]
    np.testing.assert_allclose(graph.reference(inputs)["head"], x, rtol=1e-11, atol=1e-12)


def test_sizes_of_the_networks_are_those_of_the_papers() -> None:
    alexnet = NETWORKS["alexnet"](batch=2)
    shapes = [alexnet.values[name].shape[1:] for name in ("relu1", "pool1", "pool2", "relu4", "pool5", "fc6", "fc8")]
    assert shapes == [(96, 54, 54), (96, 26, 26), (256, 12, 12), (384, 12, 12), (256, 5, 5), (4096,), (10,)]
    windows = {name: alexnet.node(name).problem.axes for name in ("conv1", "conv2", "conv3", "conv4", "conv5")}
    assert [(axes["r"], axes["stride"], axes["padding"]) for axes in windows.values()] == [
        (11, 4, 0), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1),
    ]  # fmt: skip
    assert alexnet.node("fc6").problem.axes["k"] == 6400
    assert sum(array.size for array in lenet().weights.values()) == 61706
    full = unet()
    assert full.values["bottomb"].shape == (1, 1024, 16, 16)
    assert full.values[full.outputs[0]].shape == (1, 1, 256, 256)


@settings(max_examples=60)
@given(graph=networks())
def test_the_reference_knows_every_value_and_does_not_change_its_inputs(graph: Graph) -> None:
    inputs = inputs_of(graph)
    before: Arrays = {name: array.copy() for name, array in inputs.items()}
    known = graph.reference(inputs)
    assert known.keys() == graph.values.keys()
    for name, array in known.items():
        assert array.shape == graph.values[name].shape
        assert array.dtype == np.float64
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])
