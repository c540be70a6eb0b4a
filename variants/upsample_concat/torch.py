"""Upsampling and concatenation by PyTorch.

/// opbench
title    = "torch.nn.functional.interpolate into a temporary buffer, then torch.cat(out=out)"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

Two kernels, as a network in PyTorch runs them: the enlarged image is written and read once more. The nhwc layout is the
same calls on permuted views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    low, skip, out = (tensors[name] for name in ("low", "skip", "out"))
    shape = (problem.n, problem.c1, problem.p, problem.q)
    if problem.layout == "nhwc":
        large = torch.empty([shape[i] for i in (0, 2, 3, 1)], dtype=low.dtype, device=low.device)
        low, skip, out, large = (tensor.permute(0, 3, 1, 2) for tensor in (low, skip, out, large))
    else:
        large = torch.empty(shape, dtype=low.dtype, device=low.device)

    def run() -> None:
        torch.ops.aten.upsample_nearest2d.out(low, shape[2:], 2.0, 2.0, out=large)
        torch.cat((skip, large), 1, out=out)

    return torch_launch(run)
