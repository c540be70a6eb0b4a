"""cuDNN through PyTorch: what autograd calls for the filters and the bias of a convolution.

/// opbench
title     = "aten::convolution_backward of filters and bias in TF32, chosen by cudnn.benchmark"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { layout = ["nchw", "nhwc"], bias = ["no", "yes"] }
///

The variant `torch` with TF32 allowed: float32 in memory, products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors

ALLOW_TF32 = True


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    image, dout, dweight = (nchw_view(tensors[name], problem.layout) for name in ("image", "dout", "dweight"))
    dbias = tensors["dbias"] if problem.bias == "yes" else None
    weight = torch.empty_like(dweight)  # of which only the shape is read
    sizes = [problem.k] if dbias is not None else None
    geometry = ([problem.stride] * 2, [problem.padding] * 2, [1, 1], False, [0, 0], 1)
    cudnn, backward = torch.backends.cudnn, torch.ops.aten.convolution_backward

    def run() -> Sequence[Any]:
        cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
        _, filters, sums = backward(dout, image, weight, sizes, *geometry, [False, True, dbias is not None])
        return [filters] if dbias is None else [filters, sums]

    launch = torch_launch(run, [dweight] if dbias is None else [dweight, dbias])
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
