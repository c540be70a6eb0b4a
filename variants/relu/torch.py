"""ReLU by PyTorch.

/// opbench
title    = "torch.clamp_min(x, 0, out=out), the kernel behind torch.relu"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

torch.relu has no out argument; clamp_min with the bound 0 is what it calls (aten/src/ATen/native/Activation.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    x, out = (_tensor(buffers[name], problem.dtype) for name in ("x", "out"))

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            torch.clamp_min(x, 0.0, out=out)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
