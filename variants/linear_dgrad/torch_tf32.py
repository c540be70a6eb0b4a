"""cuBLAS through PyTorch: what autograd calls for the input of a linear layer.

/// opbench
title     = "torch.mm(dout, weight, out=dx) in TF32, then threshold_backward for the mask"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { epilogue = ["none", "mask"] }
///

The variant `torch` with TF32 allowed: float32 in memory, products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = True


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dout, weight, dx = (tensors[name] for name in ("dout", "weight", "dx"))
    out = tensors["out"] if problem.epilogue == "mask" else None
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = ALLOW_TF32, False
        torch.mm(dout, weight, out=dx)
        if out is not None:
            torch.ops.aten.threshold_backward.grad_input(dx, out, 0, grad_input=dx)

    launch = torch_launch(run)
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
