"""cuDNN through PyTorch, in true float32 or bf16, reading and writing the given buffers without a copy.

/// opbench
title     = "cuDNN's fastest algorithm for this problem, chosen by cudnn.benchmark; float32 without TF32, or bf16"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu"]
supports.dtype    = ["f32", "bf16"]
///

`aten::cudnn_convolution.out` is called, as `torch.nn.functional.conv3d` has no `out=` and would need a copy of the
result. The nhwc layout is the same call on permuted views, which PyTorch calls channels_last_3d. Volumes of depth 1
with filters of depth 1 are given as images, for which cuDNN has more algorithms. Bias and ReLU follow as operations of
their own, in place, as in eager PyTorch. The first call tries every algorithm and must not be captured into a graph, so
`bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the convolution on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    views = [tensors[name] for name in ("image", "weight", "out")]
    if problem.layout == "nhwc":
        views = [view.permute(0, 4, 1, 2, 3) for view in views]
    axes = "dhw"
    if problem.d == problem.t == problem.z == 1 and problem.padding_d == 0:
        axes, views = "hw", [view[:, :, 0] for view in views]
    image, weight, out = views
    bias = tensors["bias"].reshape(-1, *[1] * len(axes)) if problem.epilogue != "none" else None
    padding, stride, dilation = (
        [problem.axes[f"{name}_{axis}"] for axis in axes] for name in ("padding", "stride", "dilation")
    )
    benchmark, deterministic = True, False
    convolve = torch.ops.aten.cudnn_convolution.out

    def run() -> None:
        convolve(
            image, weight, padding, stride, dilation, problem.groups, benchmark, deterministic, ALLOW_TF32, out=out
        )
        if bias is not None:
            out.add_(bias)
        if problem.epilogue == "bias_relu":
            out.relu_()

    launch = torch_launch(run)
    launch()
    return launch
