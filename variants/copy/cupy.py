"""Copy by the CUDA runtime.

/// opbench
title   = "cudaMemcpyAsync from device to device, through CuPy"
modules = ["cupy"]
///

The driver's own copy kernel: what a user gets without writing one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the copy on CuPy's current stream, writing into buffers["out"]."""
    x, out = buffers["x"], buffers["out"]

    def run() -> None:
        out.data.copy_from_device_async(x.data, x.nbytes)

    return run
