"""Elementwise arithmetic by PyTorch.

/// opbench
title    = "torch.add, sub, mul or div(a, b, out=out), b as a broadcast view"
modules  = ["cupy", "torch"]

[supports]
op        = ["add", "sub", "mul", "div"]
broadcast = ["none", "channel", "inner", "scalar"]
dtype     = ["f32", "bf16"]
///

One general kernel, which takes vectors where neither array is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    a, b, out = (_tensor(buffers[name], problem.dtype) for name in ("a", "b", "out"))
    if problem.broadcast == "channel":
        b = b.view(-1, 1)
    function = getattr(torch, problem.op)

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            function(a, b, out=out)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
