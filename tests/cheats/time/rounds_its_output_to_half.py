"""The product, stored with eleven bits.

/// opbench
operator = "matmul"
title = "rounds its output to half"
modules = ["cupy"]
///

What multiplying in half gains, without the tolerance of a variant that says so.
"""

# expect: wrong

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """A call whose results have the precision of float16."""
    import cupy

    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    b = b.T if problem.b_order == "col" else b

    def run() -> None:
        cupy.copyto(out, cupy.matmul(a, b).astype("float16").astype("float32"))

    return run
