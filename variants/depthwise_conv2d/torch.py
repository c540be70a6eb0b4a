"""Depthwise convolution by cuDNN through PyTorch, reading and writing the given buffers without a copy.

/// opbench
title     = "cuDNN through PyTorch with groups = channels, algorithm chosen by cudnn.benchmark"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
supports.dtype    = ["f32", "bf16"]
///

`aten::cudnn_convolution.out` is called, as `torch.nn.functional.conv2d` has no `out=` and would need a copy of the
result. The nhwc layout is the same call on permuted views, which PyTorch calls channels_last; it keeps a depthwise
filter in the order c r s, so each call reorders these few numbers first. Bias and activation follow as operations of
their own, in place, as in eager PyTorch. The first call tries every algorithm and must not be captured into a graph, so
`bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_activate, torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the convolution on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    image, weight, out = tensors["image"], tensors["weight"], tensors["out"]
    if problem.layout == "nhwc":
        image, out, weight = image.permute(0, 3, 1, 2), out.permute(0, 3, 1, 2), weight.permute(2, 0, 1)
    weight = weight[:, None]
    bias = tensors["bias"][:, None, None] if problem.epilogue != "none" else None
    geometry = ([problem.padding] * 2, [problem.stride] * 2, [problem.dilation] * 2, problem.c)
    benchmark, deterministic = True, False
    convolve = torch.ops.aten.cudnn_convolution.out

    def run() -> None:
        convolve(image, weight, *geometry, benchmark, deterministic, ALLOW_TF32, out=out)
        if bias is not None:
            out.add_(bias)
        torch_activate(out, problem.activation)

    launch = torch_launch(run)
    launch()
    return launch
