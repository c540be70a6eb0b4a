"""cuDNN through PyTorch: what autograd calls for the filters and the bias of a depthwise convolution.

/// opbench
title     = "aten::convolution_backward of filters and bias with groups = channels; float32 without TF32"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { layout = ["nchw", "nhwc"], bias = ["no", "yes"] }
///

The copy of its result into dweight is not timed. Of bf16 PyTorch rounds the filters' gradient to bf16, which is another
problem: not here.
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
    image, dout = (nchw_view(tensors[name], problem.layout) for name in ("image", "dout"))
    dweight = tensors["dweight"] if problem.layout == "nchw" else tensors["dweight"].permute(2, 0, 1)
    weight = torch.empty((problem.c, 1, problem.r, problem.s), device=image.device)  # of which only the shape is read
    dbias = tensors["dbias"] if problem.bias == "yes" else None
    sizes = [problem.c] if dbias is not None else None
    steps = ([problem.stride] * 2, [problem.padding] * 2, [problem.dilation] * 2)
    cudnn, backward = torch.backends.cudnn, torch.ops.aten.convolution_backward

    def run() -> Sequence[Any]:
        cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
        geometry = (*steps, False, [0, 0], problem.c)
        _, filters, sums = backward(dout, image, weight, sizes, *geometry, [False, True, dbias is not None])
        return [filters[:, 0]] if dbias is None else [filters[:, 0], sums]

    launch = torch_launch(run, [dweight] if dbias is None else [dweight, dbias])
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
