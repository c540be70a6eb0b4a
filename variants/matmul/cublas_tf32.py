"""cuBLAS on the matrix units: what a variant of precision tf32 has to be compared with.

/// opbench
title     = "cuBLAS GEMM through CuPy, TF32 on tensor cores"
precision = "tf32"
modules   = ["cupy", "cupy.cublas"]
supports  = { b_order = ["row", "col"] }
requires  = ["m * n > 1"]
compute_capability = "8.0"
///

As cublas.py, with CuPy's compute type set to TF32 at every call: operands are rounded to 10 bits of mantissa, sums are
kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """Return a call that enqueues out = a @ b on the current stream; b in columns is passed as a transposed view."""
    import cupy
    from cupy._core import _routines_linalg as linalg

    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    if problem.b_order == "col":
        b = b.T

    def run() -> None:
        linalg.set_compute_type(cupy.float32, linalg.COMPUTE_TYPE_TF32)
        cupy.matmul(a, b, out=out)

    return run
