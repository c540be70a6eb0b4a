"""The bases of families of operators: sizes by counting, and refused axes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from support.checks.errors import refuses
from support.common import CATALOG

CONVOLUTIONS = ("depthwise_conv2d", "depthwise_conv2d_dgrad", "depthwise_conv2d_wgrad")
POOLS = ("avgpool2d", "avgpool2d_backward", "maxpool2d", "maxpool2d_backward")
CONV3D = {"n": 1, "c": 4, "d": 5, "h": 6, "w": 7, "k": 6, "t": 2, "r": 3, "s": 2}
ATTENTION = {"batch": 1, "heads": 4, "kv_heads": 2, "queries": 3, "keys": 5, "depth": 8}


def problem(operator: str, **axes: Any) -> Any:
    return CATALOG.operator(operator)(**axes)


def counted(size: int, window: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Count the positions of a window by moving it along the padded axis."""
    position = outputs = 0
    while position + dilation * (window - 1) < size + 2 * padding:
        position, outputs = position + stride, outputs + 1
    return outputs


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_a_convolutions_output_has_a_pixel_for_each_position_of_the_filter(operator: str) -> None:
    for stride, padding, dilation in itertools.product((1, 2, 3), (0, 1, 2), (1, 2)):
        p = problem(operator, n=1, c=2, h=9, w=12, r=3, s=4, stride=stride, padding=padding, dilation=dilation)
        assert p.p == counted(9, 3, stride, padding, dilation)
        assert p.q == counted(12, 4, stride, padding, dilation)


@pytest.mark.parametrize("operator", POOLS)
def test_a_pools_output_has_a_pixel_for_each_position_of_the_window(operator: str) -> None:
    for stride, padding in itertools.product((1, 2, 3), (0, 1)):
        p = problem(operator, n=1, c=12, h=9, w=12, window=3, stride=stride, padding=padding, dtype="bf16")
        assert (p.p, p.q, p.packs) == (counted(9, 3, stride, padding), counted(12, 3, stride, padding), 3)


def test_the_pixels_under_an_element_of_a_window_are_those_of_all_its_positions() -> None:
    p = problem("depthwise_conv2d", n=1, c=1, h=7, w=9, r=2, s=3, stride=2, padding=1, dilation=2)
    image = np.arange(63.0).reshape(7, 9)
    padded = p.pad(image, -1.0)
    assert padded.shape == (9, 11) and (padded == -1).sum() == 9 * 11 - 63
    np.testing.assert_array_equal(p.crop(padded), image)
    rows, columns = p.pixels_under(1, 2)
    np.testing.assert_array_equal(
        padded[rows, columns], [[padded[2 * y + 2, 2 * x + 4] for x in range(p.q)] for y in range(p.p)]
    )


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_axes_that_are_no_convolution_are_refused(operator: str) -> None:
    axes = {"n": 1, "c": 2, "h": 4, "w": 5, "r": 3, "s": 3}
    for axis in ("stride", "dilation", "r", "s"):
        with refuses("not-allowed", axis, value=0, allowed=">= 1"):
            problem(operator, **{**axes, axis: 0})
    with refuses("filter-too-large", operator, value=(3, 3), allowed=(4, 5)):
        problem(operator, **axes, dilation=2)


@pytest.mark.parametrize("operator", (*POOLS, "avgpool3d", "maxpool3d"))
def test_axes_that_are_no_pool_are_refused(operator: str) -> None:
    axes = {"n": 1, "c": 2, "h": 3, "w": 5, **({"d": 3} if operator.endswith("3d") else {})}
    for axis in ("window", "stride"):
        with refuses("not-allowed", axis, value=0, allowed=">= 1"):
            problem(operator, **axes, **{axis: 0})
    with refuses("not-allowed", "padding", value=2, allowed="<= 1"):
        problem(operator, **axes, window=3, padding=2)
    with refuses("not-allowed", "window", value=4):
        problem(operator, **axes, window=4)


@pytest.mark.parametrize("operator", ("conv3d", "conv_transpose3d"))
def test_groups_that_do_not_divide_the_channels_are_refused(operator: str) -> None:
    p = problem(operator, **CONV3D, groups=2)
    assert (p.group_channels, p.group_filters) == (2, 3)
    with refuses("not-divisible", "k", value=6, allowed=4):
        problem(operator, **CONV3D, groups=4)
    with refuses("not-allowed", "groups", value=0, allowed=">= 1"):
        problem(operator, **CONV3D, groups=0)


@pytest.mark.parametrize("operator", ("attention", "attention_backward"))
def test_heads_that_cannot_share_keys_are_refused(operator: str) -> None:
    assert [g for _, _, g in problem(operator, **ATTENTION).heads_and_keys()] == [0, 0, 1, 1]
    with refuses("not-allowed", "heads", value=4, allowed=3):
        problem(operator, **{**ATTENTION, "kv_heads": 3})
    with refuses("not-allowed", "queries", value=6, allowed=5):
        problem(operator, **{**ATTENTION, "queries": 6}, mask="causal")
    with refuses("not-allowed", "layout", value="qkv"):
        problem(operator, **ATTENTION, layout="qkv")


@pytest.mark.parametrize("operator", ("groupnorm", "groupnorm_backward"))
@pytest.mark.parametrize("groups", (0, 4))
def test_groups_of_unequal_sizes_are_refused(operator: str, groups: int) -> None:
    with refuses("not-divisible", "groups", value=groups, allowed="divisors of 6"):
        problem(operator, batch=1, channels=6, pixels=5, groups=groups)


@pytest.mark.parametrize("layout", ("nchw", "nhwc"))
def test_runs_of_a_concatenation_make_up_both_images(layout: str) -> None:
    for operator in ("concat", "split"):
        p = problem(operator, n=2, c1=4, c2=6, h=3, w=5, layout=layout)
        assert (p.outer * p.run1, p.outer * p.run2) == (2 * 4 * 15, 2 * 6 * 15)
        assert p.lanes == 2


LOSSES = {"l1_loss": 6, "mse_loss": 6, "huber_loss": 6, "sigmoid_cross_entropy": 6, "hinge_loss": 6, "kl_div_loss": 2,
          "triplet_margin_loss": 2, "softmax_cross_entropy": 2}  # fmt: skip
"""Elements of a batch of 6, in two rows where there are rows, that each loss is a mean over."""


@pytest.mark.parametrize("operator", LOSSES)
def test_a_mean_is_over_the_elements_of_all_batches_and_its_loss_is_f32(operator: str) -> None:
    sizes = (
        {"n": 6} if "n" in {f.name for f in dataclasses.fields(CATALOG.operator(operator))} else {"rows": 2, "cols": 3}
    )
    p = problem(operator, **sizes, micro=3, dtype="bf16")
    assert p.count == 3 * LOSSES[operator]
    assert {t.name: t.dtype for t in p.output_tensors()}["loss"] == "f32"
    assert p.output_tensors()[1].dtype == "bf16"
    with refuses("not-allowed", "micro", value=0, allowed=">= 1"):
        problem(operator, **sizes, micro=0)


@pytest.mark.parametrize("operator", ("upsample2d", "upsample2d_backward"))
def test_an_enlarged_image_has_its_size_and_a_scale_of_0_is_refused(operator: str) -> None:
    sizes = {"n": 1, "c": 12, "h": 3, "w": 5}
    p = problem(operator, **sizes, scale=3)
    assert (p.p, p.q, p.packs) == (9, 15, 3)
    with refuses("not-allowed", "scale", value=0, allowed=">= 1"):
        problem(operator, **sizes, scale=0)


@pytest.mark.parametrize("operator", ("upsample_concat", "upsample_concat_backward"))
def test_vectors_lie_in_a_row_or_in_the_channels_of_both_images(operator: str) -> None:
    sizes = {"n": 1, "c1": 8, "c2": 6, "h": 3, "w": 5}
    assert [problem(operator, **sizes, layout=layout).lanes for layout in ("nchw", "nhwc")] == [2, 2]
    assert problem(operator, **{**sizes, "c2": 12}, layout="nhwc").lanes == 4
    p = problem(operator, **sizes)
    assert (p.p, p.q, p.c) == (6, 10, 14)
