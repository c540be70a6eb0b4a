"""Maximum pooling by PyTorch.

/// opbench
title    = "aten::max_pool2d_with_indices.out, the kernel behind torch.nn.functional.max_pool2d"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

On CUDA torch.nn.functional.max_pool2d always writes the int64 position of each maximum as well (8 bytes per output,
asked for or not); the out variant is that same kernel without allocating on every call. The nhwc layout is the same
call on permuted views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = (tensors[name] for name in ("x", "out"))
    indices = torch.empty(out.shape, dtype=torch.int64, device=out.device)
    x, out, indices = (nchw_view(tensor, problem.layout) for tensor in (x, out, indices))
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pool = torch.ops.aten.max_pool2d_with_indices.out

    def run() -> None:
        pool(x, window, stride, padding, [1, 1], False, out=out, indices=indices)

    return torch_launch(run)
