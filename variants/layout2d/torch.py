"""Conversion between layouts by PyTorch.

/// opbench
title    = "out.copy_(x.permute(...)), what contiguous(memory_format=...) runs"
modules  = ["cupy", "torch"]
supports = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
///

PyTorch copies between strides with one general kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    x, out = (_tensor(buffers[name], problem.dtype) for name in ("x", "out"))
    x = x.permute((0, 2, 3, 1) if problem.to == "nhwc" else (0, 3, 1, 2))

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            out.copy_(x)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
