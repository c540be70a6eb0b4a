"""cuBLAS's batched product through PyTorch.

/// opbench
title     = "torch.bmm on transposed views, in float32 without TF32 or in bf16"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { a_order = ["row", "col"], b_order = ["row", "col"], dtype = ["f32", "bf16"] }
///

bf16 is multiplied on the matrix units; its products are exact and sums are kept in float32, also where the parts of a
split k are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues out = a @ b; operands stored by columns are passed as transposed views."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    if problem.a_order == "col":
        a = a.transpose(1, 2)
    if problem.b_order == "col":
        b = b.transpose(1, 2)
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
        torch.bmm(a, b, out=out)

    launch = torch_launch(run)
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
