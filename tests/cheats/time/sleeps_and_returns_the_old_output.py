"""The product once; afterwards a plausible time without work.

/// opbench
operator = "matmul"
title = "sleeps and returns the old output"
modules = ["cupy"]
///

It waits for the GPU, so that its stream cannot be held and the sleep falls between the events: no floor is
undercut, and only looking at the output of a timed call tells.
"""

# expect: wrong

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """A call that works the first time only."""
    import time

    import cupy

    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    b = b.T if problem.b_order == "col" else b
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            cupy.matmul(a, b, out=out)
            return
        cupy.cuda.get_current_stream().synchronize()
        time.sleep(1e-3)

    return run
