"""Upsampling by PyTorch.

/// opbench
title    = "aten::upsample_nearest2d.out or upsample_bilinear2d.out, which torch's interpolate calls"
modules  = ["cupy", "torch"]
supports = { mode = ["nearest", "bilinear"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

The out variants are the same kernels without allocating on every call. The nhwc layout is the same call on permuted
views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = (nchw_view(tensors[name], problem.layout) for name in ("x", "out"))
    size, scale = [problem.p, problem.q], float(problem.scale)

    def run() -> None:
        if problem.mode == "nearest":
            torch.ops.aten.upsample_nearest2d.out(x, size, scale, scale, out=out)
        else:
            align_corners = False
            torch.ops.aten.upsample_bilinear2d.out(x, size, align_corners, scale, scale, out=out)

    return torch_launch(run)
