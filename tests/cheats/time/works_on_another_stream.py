"""The product, on a stream that nobody waits for.

/// opbench
operator = "matmul"
title = "works on another stream"
modules = ["cupy"]
///

A stream that does not block is not ordered with the harness's: its events see an empty span.
"""

# expect: wrong|invalid

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """A call that enqueues the work where no event is."""
    import cupy

    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    b = b.T if problem.b_order == "col" else b
    aside = cupy.cuda.Stream(non_blocking=True)

    def run() -> None:
        with aside:
            cupy.matmul(a, b, out=out)

    return run
