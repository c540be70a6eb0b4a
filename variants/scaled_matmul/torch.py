"""cuBLAS's product of 8-bit floats through PyTorch.

/// opbench
title     = "torch._scaled_mm: cuBLAS with scales per tensor, row or block"
precision = "fp8"
modules   = ["cupy", "torch"]
supports  = { scaling = ["tensor", "row", "block"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
requires  = ["k % 16 == 0 and n % 16 == 0", "not (a_dtype == 'e5m2' and b_dtype == 'e5m2')"]
compute_capability = "9.0"
///

With scales of tensors and rows, cuBLAS may sum in the tensor cores alone (use_fast_accum), which is its fastest form;
with scales of blocks it promotes sums of 128 elements. PyTorch returns a new tensor for some scales, so the result is
always written into the output that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues out = a @ b.T with scales; b is passed as a transposed view."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = tensors["a"], tensors["b"].t(), tensors["out"]
    scale_a, scale_b = tensors["scale_a"], tensors["scale_b"]
    if problem.scaling == "row":
        scale_a, scale_b = scale_a[:, None], scale_b[None, :]
    elif problem.scaling == "block":
        scale_a, scale_b = scale_a.t(), scale_b.t()
    fast = problem.scaling != "block"

    def run() -> None:
        torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast, out=out)

    launch = torch_launch(run)
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
