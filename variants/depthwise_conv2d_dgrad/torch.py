"""cuDNN through PyTorch: what autograd calls for the image of a depthwise convolution.

/// opbench
title     = "aten::convolution_backward of the image with groups = channels, chosen by cudnn.benchmark"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

It returns a new tensor; its copy into dimage is not timed, as PyTorch would not make it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dout, dimage = (nchw_view(tensors[name], problem.layout) for name in ("dout", "dimage"))
    weight = tensors["weight"] if problem.layout == "nchw" else tensors["weight"].permute(2, 0, 1)
    weight = weight[:, None]  # a view: a copy made here would keep the contents of now
    image = torch.empty_like(dimage)  # of which only the shape is read
    steps = ([problem.stride] * 2, [problem.padding] * 2, [problem.dilation] * 2)
    cudnn, backward = torch.backends.cudnn, torch.ops.aten.convolution_backward

    def run() -> Sequence[Any]:
        cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
        geometry = (*steps, False, [0, 0], problem.c)
        gradient, _, _ = backward(dout, image, weight, None, *geometry, [True, False, False])
        return [gradient]

    launch = torch_launch(run, [dimage])
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
