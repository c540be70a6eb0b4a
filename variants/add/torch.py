"""Addition by PyTorch.

/// opbench
title   = "torch.add(a, b, out=out)"
modules = ["cupy", "torch"]
///

PyTorch's vectorised elementwise kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    a, b, out = (torch.from_dlpack(buffers[name]) for name in ("a", "b", "out"))

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            torch.add(a, b, out=out)

    return run
