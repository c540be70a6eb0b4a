"""Maximum pooling by PyTorch.

/// opbench
title   = "aten::max_pool2d_with_indices.out, the kernel behind torch.nn.functional.max_pool2d"
modules = ["cupy", "torch"]
///

On CUDA torch.nn.functional.max_pool2d always writes the int64 position of each maximum as well (8 bytes per output,
asked for or not); the out variant is that same kernel without allocating on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    x, out = (torch.from_dlpack(buffers[name]) for name in ("x", "out"))
    indices = torch.empty(out.shape, dtype=torch.int64, device=out.device)
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pool = torch.ops.aten.max_pool2d_with_indices.out

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            pool(x, window, stride, padding, [1, 1], False, out=out, indices=indices)

    return run
