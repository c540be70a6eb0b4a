"""cuBLAS on bf16 matrices through PyTorch: what a variant of precision bf16 has to be compared with.

/// opbench
title     = "cuBLAS GEMM through PyTorch, bf16 with float32 sums"
precision = "bf16"
modules   = ["cupy", "torch"]
supports  = { b_order = ["row", "col"], dtype = ["bf16"] }
compute_capability = "8.0"
///

PyTorch rather than CuPy, whose arrays know no bf16: the 16 bits travel as whole numbers and are viewed. The parts of a
split k are added in float32 too, which PyTorch would leave to cuBLAS by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a call that enqueues out = a @ b on the current stream; b in columns is passed as a transposed view."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    if problem.b_order == "col":
        b = b.T
    options = torch.backends.cuda.matmul

    def run() -> None:
        options.allow_bf16_reduced_precision_reduction = False
        torch.mm(a, b, out=out)

    launch = torch_launch(run)
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
