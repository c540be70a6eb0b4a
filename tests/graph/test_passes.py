"""Passes keep a network's outputs, do what they say and leave alone what they must not touch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import PASSES, apply_passes, rewrite_graph, to_dtype
from opbench.graph.zoo import NETWORKS
from opbench.networks.plan.memory import plan_memory
from support.builders.random_networks import assert_same_outputs, inputs_of, networks
from support.checks.errors import refuses


def operators(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes]


@pytest.mark.parametrize("name", PASSES)
@settings(max_examples=60)
@given(graph=networks())
def test_a_pass_keeps_the_outputs_and_its_argument(name: str, graph: Graph) -> None:
    before = operators(graph)
    after, done = PASSES[name](graph)
    # Folded weights are rounded to float32 once more.
    assert_same_outputs(graph, after, rounding=1e-4 if name == "fold_batchnorm" else 0.0)
    assert operators(graph) == before
    assert len(done) == len(before) - len(after.nodes)
    again, nothing = PASSES[name](after)
    assert nothing == [] or name == "fuse_relu"
    assert operators(again) == operators(after) or name == "fuse_relu"


@settings(max_examples=60)
@given(graph=networks(16))
def test_all_passes_together_keep_the_outputs(graph: Graph) -> None:
    after, _ = apply_passes(graph)
    assert_same_outputs(graph, after, rounding=1e-3)
    assert set(after.weights) <= set(after.values)


def test_the_networks_become_what_their_operators_were_made_for() -> None:
    lenet, done = apply_passes(NETWORKS["lenet"]())
    assert operators(lenet) == ["conv2d", "maxpool2d"] * 2 + ["linear"] * 3
    assert [node.problem.axes["epilogue"] for node in lenet.nodes[::2][:2]] == ["bias_relu"] * 2
    assert done == [
        "relu1: fused into conv1",
        "relu2: fused into conv2",
        "relu3: fused into fc3",
        "relu4: fused into fc4",
    ]
    unet, _ = apply_passes(NETWORKS["unet"](size=32, base=4))
    assert sorted(set(operators(unet))) == ["conv2d", "maxpool2d", "upsample_concat_conv2d"]
    assert len(unet.nodes) == 19 + 4
    stored, _ = rewrite_graph(NETWORKS["unet"](size=32, base=4), PASSES, ["fuse_upsample_concat_conv"])
    assert operators(stored).count("upsample_concat") == 4 and len(stored.nodes) == len(unet.nodes) + 4
    assert_same_outputs(stored, unet)
    small, large = plan_memory(unet), plan_memory(stored)
    assert small.peak_bytes < large.peak_bytes
    assert small.peak_bytes == small.lower_bound_bytes
    alexnet, done = PASSES["drop_dropout"](NETWORKS["alexnet"]())
    assert "dropout" not in operators(alexnet)
    assert done[0] == "drop6: left out, as dropout is the identity at inference"
    assert alexnet.node("fc8").inputs["x"] == "relu7"


SMALL_GPT2 = {"batch": 2, "tokens": 16, "layers": 2, "heads": 2, "width": 32, "vocabulary": 50}


def test_the_sums_of_residual_blocks_are_fused() -> None:
    resnet = NETWORKS["resnet50"](size=32, base=4, classes=10)
    after, _ = apply_passes(resnet)
    assert sorted(set(operators(after))) == ["avgpool2d", "conv2d", "linear", "maxpool2d"]
    epilogues = [node.problem.axes["epilogue"] for node in after.nodes if node.operator == "conv2d"]
    assert (epilogues.count("bias_add_relu"), epilogues.count("bias"), len(epilogues)) == (16, 4, 53)
    assert_same_outputs(resnet, after, rounding=1e-5)
    gpt2 = NETWORKS["gpt2"](**SMALL_GPT2)
    after, _ = apply_passes(gpt2)
    norms = [node.problem.axes["residual"] for node in after.nodes if node.operator == "layernorm"]
    assert norms == ["none", "add", "add", "add", "add"]
    assert operators(after).count("elementwise") == 1, "the positions"
    modes = [node.problem.axes["epilogue"] for node in after.nodes if node.operator == "linear"]
    assert modes == ["bias", "bias", "bias_gelu_tanh", "bias"] * 2 + ["none"]
    assert_same_outputs(gpt2, after)


def test_mobilenetv3_keeps_no_activation_and_no_sum_of_its_own() -> None:
    graph = NETWORKS["mobilenetv3"](size=32, width=25, classes=10)
    after, done = apply_passes(graph)
    alone = [node for node in after.nodes if node.operator == "elementwise"]
    assert [node.problem.axes["op"] for node in alone] == ["mul"] * 8, "the scales of squeeze and excitation"
    modes = Counter((node.operator, node.problem.axes.get("epilogue")) for node in after.nodes)
    assert modes["conv2d", "bias_hardswish"] == 11 and modes["depthwise_conv2d", "bias_hardswish"] == 9
    assert modes["linear", "bias_hardswish"] == 1 and modes["linear", "bias_hardsigmoid"] == 8
    assert modes["conv2d", "bias_add"] == 10
    assert {"block7.expand.hardswish: fused into block7.expand", "block15.sum: fused into block15.project"} <= set(done)
    assert_same_outputs(graph, after, rounding=1e-5)
    images = [node.name for node in after.nodes if "layout" in node.problem.axes]
    assert_same_outputs(after, with_layouts(after, dict.fromkeys(images, "nhwc")))


@pytest.mark.parametrize("op", ["hardswish", "hardsigmoid"])
def test_an_activation_is_fused_into_what_has_an_epilogue_for_it(op: str) -> None:
    net = Builder("activations")
    x = net.conv2d(net.input("image", 1, 3, 5, 5), 4, 3, padding=1, bias=False, name="conv")
    depthwise = net.depthwise_conv2d(net.activation(op, x, name="first"), 3, padding=1, name="depthwise")
    graph = net.graph(net.activation(op, depthwise, name="second"))
    after, done = PASSES["fuse_hardswish"](graph)
    assert done == ["first: fused into conv", "second: fused into depthwise"][: 2 if op == "hardswish" else 1]
    assert after.node("conv").problem.axes["epilogue"] == f"bias_{op}", "with a bias of zeros"
    assert_same_outputs(graph, after)
    assert PASSES["fuse_hardswish"](net.graph(net.activation(op, x), x))[1] == [], "the sums are an output"
    clipped = net.graph(net.relu(net.activation(op, depthwise, name="inner"), name="outer"))
    both, _ = apply_passes(clipped)
    assert "relu" in operators(both), "an epilogue has one activation"
    assert_same_outputs(clipped, both)


def test_a_sum_without_relu_is_fused_unless_an_activation_comes_first() -> None:
    net = Builder("sums")
    x = net.input("image", 1, 3, 5, 5)
    plain = net.conv2d(x, 3, 1, bias=True, name="plain")
    active = net.activation("hardswish", net.conv2d(x, 3, 1, bias=True, name="active"), name="hardswish")
    graph = net.graph(net.elementwise("add", plain, x, name="sum"), net.elementwise("add", active, x, name="other"))
    after, _ = apply_passes(graph)
    assert operators(after) == ["conv2d", "conv2d", "elementwise"]
    assert after.node("plain").problem.axes["epilogue"] == "bias_add"
    assert_same_outputs(graph, after)


def test_a_sum_that_others_read_is_not_fused_into_a_convolution() -> None:
    net = Builder("read-twice")
    x = net.input("image", 1, 3, 6, 6)
    y = net.conv2d(x, 3, 3, padding=1, name="conv")
    total = net.relu(net.elementwise("add", y, x, name="sum"), name="relu")
    graph = net.graph(total, net.relu(y, name="other"))
    after, _ = apply_passes(graph)
    assert operators(after) == ["conv2d", "elementwise", "relu"]
    assert_same_outputs(graph, after)


def test_folding_gives_the_weights_of_the_textbook() -> None:
    net = Builder("folded")
    x = net.input("image", 1, 2, 5, 5)
    graph = net.graph(net.batchnorm2d(net.conv2d(x, 3, 3, bias=True, name="conv"), name="norm"))
    after, done = PASSES["fold_batchnorm"](graph)
    assert done == ["norm: folded into the weights of conv"]
    w = {name: array.astype(np.float64) for name, array in graph.weights.items()}
    for k in range(3):
        factor = w["norm.scale"][k] / (w["norm.variance"][k] + 1e-5) ** 0.5
        bias = (w["conv.bias"][k] - w["norm.mean"][k]) * factor + w["norm.shift"][k]
        np.testing.assert_array_equal(
            after.weights["conv.weight.folded"][k], (w["conv.weight"][k] * factor).astype(np.float32)
        )
        assert after.weights["conv.bias.folded"][k] == np.float32(bias)
    assert sorted(after.weights) == ["conv.bias.folded", "conv.weight.folded"]


def test_batch_norm_and_relu_become_part_of_a_depthwise_convolution() -> None:
    net = Builder("depthwise")
    x = net.depthwise_conv2d(net.input("image", 2, 3, 5, 5), 3, stride=2, padding=1, bias=False, name="conv")
    graph = net.graph(net.relu(net.batchnorm2d(x, name="norm"), name="relu"))
    after, _ = apply_passes(graph)
    assert operators(after) == ["depthwise_conv2d"] and after.node("conv").problem.axes["epilogue"] == "bias_relu"
    assert_same_outputs(graph, after, rounding=1e-5)
    assert_same_outputs(after, with_layouts(after, {"conv": "nhwc"}))
    clipped, _ = PASSES["fuse_relu"](net.graph(net.relu(x, name="alone")))
    assert operators(clipped) == ["depthwise_conv2d"], "with a bias of zeros"


def test_a_result_that_others_need_is_not_fused_away() -> None:
    net = Builder("shared")
    x = net.input("image", 1, 2, 4, 4)
    conv = net.conv2d(x, 2, 3, padding=1)
    normal = net.batchnorm2d(conv)
    for graph in (
        net.graph(net.elementwise("add", net.relu(normal), normal)),
        net.graph(net.relu(normal, name="last"), normal),
        net.graph(net.relu(net.flatten(normal, name="view"), name="flat")),
    ):
        assert PASSES["fuse_relu"](graph)[1] == []
    graph = net.graph(normal, conv)
    assert PASSES["fold_batchnorm"](graph)[1] == []
    up = net.upsample2d(x, 2)
    assert PASSES["fuse_upsample_concat"](net.graph(net.concat(up, up)))[1] == []
    bilinear = net.concat(up, net.upsample2d(x, 2, "bilinear"), name="smooth")
    assert PASSES["fuse_upsample_concat"](net.graph(bilinear))[1] == []


def test_the_order_of_skip_and_upsampled_channels_counts() -> None:
    net = Builder("order")
    x, skip = net.input("image", 1, 2, 3, 3), net.input("skip", 1, 5, 6, 6)
    behind = net.graph(net.concat(skip, net.upsample2d(x), name="joined"))
    fused, done = PASSES["fuse_upsample_concat"](behind)
    assert done == ["upsample1: fused into joined"]
    assert (fused.node("joined").problem.axes["c1"], fused.node("joined").problem.axes["c2"]) == (2, 5)
    assert_same_outputs(behind, fused)
    before = net.graph(net.concat(net.upsample2d(x, name="up"), skip))
    assert PASSES["fuse_upsample_concat"](before)[1] == []


def up_and_conv(r: int, padding: int, stride: int = 1, k: int = 3, **more: bool) -> Graph:
    """A convolution, called conv, of an upsampled image of 2 x 3 x 4 behind a skip connection of 5 channels."""
    net = Builder("up")
    low, skip = net.input("image", 1, 2, 3, 4), net.input("skip", 1, 5, 6, 8)
    joined = net.concat(skip, net.upsample2d(low, name="up"), name="joined")
    out = net.relu(net.conv2d(joined, k, r, stride=stride, padding=padding, bias=more.get("bias", False), name="conv"))
    return net.graph(out, *[joined] * more.get("joined_is_output", False))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("r", [1, 3, 5])
def test_a_convolution_reads_the_parts_of_a_joined_image(r: int, bias: bool) -> None:
    graph = up_and_conv(r, r // 2, bias=bias)
    before, _ = PASSES["fuse_upsample_concat"](graph)
    after, done = PASSES["fuse_upsample_concat_conv"](before)
    assert done == ["joined: fused into conv"]
    assert operators(after) == ["upsample_concat_conv2d", "relu"]
    assert "joined" not in after.values
    assert_same_outputs(graph, after)
    both, _ = apply_passes(graph)
    assert operators(both) == ["upsample_concat_conv2d"]
    assert both.nodes[0].problem.axes["epilogue"] == "bias_relu"
    assert_same_outputs(graph, both)
    assert_same_outputs(both, with_layouts(both, {"conv": "nhwc"}))
    half = to_dtype(both, "bf16")
    assert half.nodes[0].problem.storage == "bf16"


def test_a_joined_image_that_is_needed_whole_stays() -> None:
    for graph in (
        up_and_conv(3, 1, stride=2),
        up_and_conv(3, 0),
        up_and_conv(3, 2),
        up_and_conv(2, 1),
        up_and_conv(3, 1, joined_is_output=True),
    ):
        before, _ = PASSES["fuse_upsample_concat"](graph)
        assert PASSES["fuse_upsample_concat_conv"](before)[1] == []


def test_dropout_that_is_an_output_keeps_its_name() -> None:
    net = Builder("ends")
    x = net.input("image", 1, 2, 3, 3)
    graph = net.graph(net.dropout(net.dropout(x, name="first"), name="second"))
    after, done = PASSES["drop_dropout"](graph)
    assert (after.outputs, after.nodes, len(done)) == (("second",), (), 2)
    inputs = inputs_of(graph)
    np.testing.assert_array_equal(after.reference(inputs)["second"], inputs["image"])


def test_bf16_stores_everything_so_and_refuses_what_cannot_be() -> None:
    graph, _ = apply_passes(NETWORKS["lenet"]())
    half = to_dtype(graph, "bf16")
    assert {value.dtype for value in half.values.values()} == {"bf16"}
    assert {node.problem.storage for node in half.nodes} == {"bf16"}
    inputs = inputs_of(graph)
    exact, rounded = graph.reference(inputs)["fc5"], half.reference(inputs)["fc5"]
    assert 0 < np.abs(rounded - exact).max() < 0.02 * np.abs(exact).max()
    net = Builder("twice")
    x = net.input("image", 1, 6)
    twice = net.graph(net.node("twice", "add", {"n": 6}, {"a": x, "b": x}, shape=x.shape))
    with refuses("other-dtype", "twice", value="bf16"):
        to_dtype(twice, "bf16")


def test_a_relu_that_nothing_fuses_is_stored_in_bf16_too() -> None:
    lenet = NETWORKS["lenet"]()
    half = to_dtype(lenet, "bf16")
    assert half.node("relu1").problem.storage == "bf16"
    exact, rounded = (graph.reference(inputs_of(lenet))["fc5"] for graph in (lenet, half))
    assert 0 < np.abs(rounded - exact).max() < 0.02 * np.abs(exact).max()
