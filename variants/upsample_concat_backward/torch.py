"""The gradients of an upsampled image joined to another, by PyTorch.

/// opbench
title    = "torch copy of the skip channels, and aten::upsample_nearest2d_backward.grad_input of the others"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

Autograd hands the skip's part on as a view; it is copied here, as whoever adds to it or needs it whole would. The
nhwc layout is the same on permuted views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dout, dlow, dskip = (nchw_view(tensors[name], problem.layout) for name in ("dout", "dlow", "dskip"))
    size, small = [problem.p, problem.q], [problem.n, problem.c1, problem.h, problem.w]
    skip, large = dout[:, : problem.c2], dout[:, problem.c2 :]
    backward = torch.ops.aten.upsample_nearest2d_backward.grad_input

    def run() -> None:
        dskip.copy_(skip)
        backward(large, size, small, 2.0, 2.0, grad_input=dlow)

    return torch_launch(run)
