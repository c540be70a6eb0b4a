"""Softmax in Triton: one program per row, which holds the row in registers.

/// opbench
operator = "softmax"
title    = "Triton: one program per row, read once and written once"
modules  = ["cupy", "torch", "triton"]
supports = { dtype = ["f32", "bf16"] }
tune     = { WARPS = [4, 8, 16] }
requires = ["cols <= 16384"]
///

Triton chooses how the row lies in the threads' registers, and the shuffles of the two reductions. It compiles the
kernel at the first launch, which is never timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from opbench import torch_launch, torch_tensors


@triton.jit
def softmax_rows(x, out, cols, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write one row of out = exp(x - max) / sum, computed in float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < cols
    value = tl.load(x + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    result = power / tl.sum(power, axis=0)
    tl.store(out + row * cols + column, result.to(out.dtype.element_ty), mask=inside)


def bind(problem: Any, buffers: dict[str, Any], *, WARPS: int) -> Callable[[], None]:
    """Return a callable that enqueues the kernel on CuPy's current stream, writing into buffers["out"]."""
    tensors = torch_tensors(problem, buffers)
    x, out = (tensors[name] for name in ("x", "out"))

    def run() -> None:
        columns = triton.next_power_of_2(problem.cols)
        softmax_rows[(problem.rows,)](x, out, problem.cols, COLUMNS=columns, num_warps=WARPS)

    return torch_launch(run)
