"""Maximum pooling of volumes, images and lines by PyTorch.

/// opbench
title    = "aten::max_pool3d_with_indices.out and max_pool2d_with_indices.out for one layer"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

On CUDA PyTorch's maximum pooling always writes the int64 position of each maximum as well, 8 bytes per output. Volumes
of one layer take the operator for images, as PyTorch's pooling of lines does, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = tensors["x"], tensors["out"]
    windows = [problem.window_d, problem.window_h, problem.window_w]
    paddings = [problem.padding_d, problem.padding_h, problem.padding_w]
    indices = torch.empty(out.shape, dtype=torch.int64, device=out.device)
    if problem.d == 1:
        x, out, indices = (tensor.squeeze(2) for tensor in (x, out, indices))
    skipped = 5 - x.dim()
    window, padding = windows[skipped:], paddings[skipped:]
    stride, dilation = [problem.stride] * len(window), [problem.dilation] * len(window)
    aten = torch.ops.aten
    pool = aten.max_pool2d_with_indices.out if skipped else aten.max_pool3d_with_indices.out

    def run() -> None:
        pool(x, window, stride, padding, dilation, False, out=out, indices=indices)

    return torch_launch(run)
