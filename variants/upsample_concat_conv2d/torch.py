"""Upsampling, concatenation and convolution by PyTorch and cuDNN, in true float32 or bf16.

/// opbench
title     = "torch interpolate and cat into temporary buffers, then the fastest convolution of cuDNN"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu"]
supports.dtype    = ["f32", "bf16"]
///

As a network in PyTorch runs it: the enlarged image and the joined one are each written and read once more. The nhwc
layout is the same calls on permuted views, which PyTorch calls channels_last. Bias and ReLU follow as operations of
their own, in place. The first call tries every algorithm and must not be captured into a graph, so `bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    low, skip, weight, out = (tensors[name] for name in ("low", "skip", "weight", "out"))
    memory = torch.contiguous_format
    if problem.layout == "nhwc":
        low, skip, weight, out = (array.permute(0, 3, 1, 2) for array in (low, skip, weight, out))
        memory = torch.channels_last
    size = (problem.height, problem.width)
    options = {"dtype": low.dtype, "device": low.device, "memory_format": memory}
    large = torch.empty((problem.n, problem.c1, *size), **options)
    joined = torch.empty((problem.n, problem.c, *size), **options)
    bias = tensors["bias"][:, None, None] if problem.epilogue != "none" else None
    geometry = ([problem.padding] * 2, [1, 1], [1, 1], 1)
    benchmark, deterministic = True, False

    def run() -> None:
        torch.ops.aten.upsample_nearest2d.out(low, size, 2.0, 2.0, out=large)
        torch.cat((skip, large), 1, out=joined)
        torch.ops.aten.cudnn_convolution.out(joined, weight, *geometry, benchmark, deterministic, ALLOW_TF32, out=out)
        if bias is not None:
            out.add_(bias)
        if problem.epilogue == "bias_relu":
            out.relu_()

    launch = torch_launch(run)
    launch()
    return launch
