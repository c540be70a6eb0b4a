"""cuDNN through PyTorch: what autograd calls for the image of a convolution.

/// opbench
title     = "aten::convolution_backward of the image, algorithm chosen by cudnn.benchmark"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "add", "mask", "add_mask"]
supports.dtype    = ["f32", "bf16"]
///

It returns a new tensor; its copy into dimage is not timed, as PyTorch would not make it. Epilogues follow as
operations of their own.
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
    dout, weight, dimage = (nchw_view(tensors[name], problem.layout) for name in ("dout", "weight", "dimage"))
    skip, out = (nchw_view(tensors[name], problem.layout) if name in tensors else None for name in ("skip", "out"))
    image = torch.empty_like(dimage)  # of which only the shape is read
    geometry = ([problem.stride] * 2, [problem.padding] * 2, [1, 1], False, [0, 0], 1)
    cudnn, backward = torch.backends.cudnn, torch.ops.aten.convolution_backward

    def run() -> Sequence[Any]:
        cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
        gradient, _, _ = backward(dout, image, weight, None, *geometry, [True, False, False])
        if skip is not None:
            torch.add(gradient, skip, out=dimage)
        if out is not None:
            summed = gradient if skip is None else dimage
            torch.ops.aten.threshold_backward.grad_input(summed, out, 0, grad_input=dimage)
        return [gradient] if problem.epilogue == "none" else []

    launch = torch_launch(run, [dimage] if problem.epilogue == "none" else [])
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
