"""Sorts by Thrust, through CuPy.

/// opbench
title   = "a copy, then cupy.ndarray.sort (Thrust, in place)"
modules = ["cupy"]

[supports]
dtype = ["f32", "i32"]
///

Thrust calls CUB's radix sort of keys where it knows the order of the type, else a merge sort. The keys are copied
first, because the input must stay as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    x, out = buffers["x"], buffers["out"]

    def run() -> None:
        out.data.copy_from_device_async(x.data, x.nbytes)
        out.sort()

    return run
