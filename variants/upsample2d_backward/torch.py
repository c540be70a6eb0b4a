"""The gradient of upsampling by PyTorch.

/// opbench
title    = "aten::upsample_nearest2d_backward or upsample_bilinear2d_backward, with grad_input"
modules  = ["cupy", "torch"]
supports = { mode = ["nearest", "bilinear"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

What autograd calls for torch.nn.functional.interpolate. The bilinear kernel clears dx and adds to it with float
atomics, so that its bits vary from run to run. The nhwc layout is the same call on permuted views, which PyTorch
calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dout, dx = (nchw_view(tensors[name], problem.layout) for name in ("dout", "dx"))
    size, scale = [problem.p, problem.q], float(problem.scale)
    small = [problem.n, problem.c, problem.h, problem.w]
    aten, align_corners = torch.ops.aten, False

    def run() -> None:
        if problem.mode == "nearest":
            aten.upsample_nearest2d_backward.grad_input(dout, size, small, scale, scale, grad_input=dx)
        else:
            aten.upsample_bilinear2d_backward.grad_input(dout, size, small, align_corners, scale, scale, grad_input=dx)

    return torch_launch(run)
