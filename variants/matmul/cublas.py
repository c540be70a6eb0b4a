"""cuBLAS through CuPy: the library to compare with.

/// opbench
title     = "cuBLAS GEMM through CuPy, float32 without TF32"
precision = "f32"
modules   = ["cupy", "cupy.cublas"]
supports  = { b_order = ["row", "col"] }
requires  = ["m * n > 1"]
///

`cupy.cublas` is listed because importing it is what loads libcublas; without the library that import fails. For a
single output CuPy does not call cuBLAS at all but multiplies and sums, hence `requires`. The compute type is set at
every call: it is global in CuPy, and an environment variable (CUPY_TF32) could otherwise turn float32 into TF32.
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
        linalg.set_compute_type(cupy.float32, linalg.COMPUTE_TYPE_FP32)
        cupy.matmul(a, b, out=out)

    return run
