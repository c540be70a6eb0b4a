"""cuDNN through PyTorch, in true float32 or bf16, reading and writing the given buffers without a copy.

/// opbench
title     = "cuDNN's fastest algorithm for this problem, chosen by cudnn.benchmark; float32 without TF32, or bf16"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
supports.dtype    = ["f32", "bf16"]
///

`aten::cudnn_convolution.out` is called rather than `torch.nn.functional.conv2d`, which has no `out=` and would need a
copy of the result. The nhwc layout is the same call on permuted views, which PyTorch calls channels_last. Bias,
residual and activation follow as operations of their own, in place, as in eager PyTorch. The first call tries every
algorithm and must not be captured into a graph, so `bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_activate, torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the convolution on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    image, weight, out = tensors["image"], tensors["weight"], tensors["out"]
    image, weight, out = (nchw_view(tensor, problem.layout) for tensor in (image, weight, out))
    bias = tensors["bias"][:, None, None] if problem.epilogue != "none" else None
    residual = nchw_view(tensors["residual"], problem.layout) if problem.has_residual else None
    geometry = ([problem.padding] * 2, [problem.stride] * 2, [1, 1], 1)
    benchmark, deterministic = True, False
    convolve = torch.ops.aten.cudnn_convolution.out

    def run() -> None:
        convolve(image, weight, *geometry, benchmark, deterministic, ALLOW_TF32, out=out)
        if bias is not None:
            out.add_(bias)
        if residual is not None:
            out.add_(residual)
        torch_activate(out, problem.activation)

    launch = torch_launch(run)
    launch()
    return launch
