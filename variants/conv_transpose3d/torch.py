"""cuDNN through PyTorch: its transposed convolution, whose result is an array of PyTorch's own.

/// opbench
title     = "cuDNN's fastest algorithm for this problem, chosen by cudnn.benchmark; float32 without TF32, or bf16"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu"]
supports.dtype    = ["f32", "bf16"]
///

The transposed convolution has no `out=` that saves a copy, so the result is copied into the buffer outside of the timed
interval. The nhwc layout is the same call on permuted views, which PyTorch calls channels_last_3d. Volumes of depth 1
with filters of depth 1 are given as images, for which cuDNN has more algorithms. A ReLU follows as an operation of its
own, in place. The first call tries every algorithm and must not be captured into a graph, so `bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the transposed convolution on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    views = [tensors[name] for name in ("image", "weight", "out")]
    if problem.layout == "nhwc":
        views = [view.permute(0, 4, 1, 2, 3) for view in views]
    axes, convolve = "dhw", torch.nn.functional.conv_transpose3d
    if problem.d == problem.t == problem.z == 1 and problem.padding_d == problem.output_padding_d == 0:
        axes, convolve = "hw", torch.nn.functional.conv_transpose2d
        views = [view[:, :, 0] for view in views]
    image, weight, out = views
    stride, padding, output_padding, dilation = (
        [problem.axes[f"{name}_{axis}"] for axis in axes]
        for name in ("stride", "padding", "output_padding", "dilation")
    )
    cudnn = torch.backends.cudnn

    def run() -> Sequence[Any]:
        cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
        result = convolve(image, weight, tensors.get("bias"), stride, padding, output_padding, problem.groups, dilation)
        return [result.relu_() if problem.epilogue == "bias_relu" else result]

    launch = torch_launch(run, [out])
    launch()
    return launch
