"""The product of the first call, copied ever after.

/// opbench
operator = "matmul"
title = "returns a cached result"
modules = ["cupy"]
///

Keyed by the pointer, as a framework's cache of plans is: other content at the same place gets the old result.
"""

# expect: wrong|invalid

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """A call that multiplies once for each place in memory."""
    import cupy

    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    b = b.T if problem.b_order == "col" else b
    results: dict[int, Any] = {}

    def run() -> None:
        if a.data.ptr not in results:
            results[a.data.ptr] = cupy.matmul(a, b)
        cupy.copyto(out, results[a.data.ptr])

    return run
