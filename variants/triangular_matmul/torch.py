"""A triangular product by PyTorch, which has no operator of its own for it.

/// opbench
title     = "torch.mm of the whole matrices, then triu_ or tril_; float32 without TF32, or bf16"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { triangle = ["upper", "lower"], dtype = ["f32", "bf16"] }
///

The way in which a framework computes it: cuBLAS multiplies all zeros, six times as many products as needed, and a
second kernel cuts the result. cuBLAS's trmm takes one triangular matrix, and PyTorch does not call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the product and the cut on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    matmul, cut = torch.backends.cuda.matmul, out.triu_ if problem.triangle == "upper" else out.tril_

    def run() -> None:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
        torch.mm(a, b, out=out)
        cut()

    launch = torch_launch(run)
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
