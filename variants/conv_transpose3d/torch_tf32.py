"""cuDNN through PyTorch in TF32: its transposed convolution, whose result is an array of PyTorch's own.

/// opbench
title     = "cuDNN's fastest TF32 algorithm for this problem, chosen by cudnn.benchmark"
precision = "tf32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu"]
///

The variant `torch` with TF32 allowed: float32 in memory, products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = True


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
