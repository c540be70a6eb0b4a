"""cuBLAS through PyTorch: what autograd calls for the weight and the bias of a linear layer.

/// opbench
title     = "torch.mm(dout.T, x, out=dweight), float32 without TF32, and torch.sum for the bias"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { bias = ["no", "yes"] }
///

Of bf16 PyTorch rounds the weights' gradient to bf16, which is another problem: not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, dout, dweight = (tensors[name] for name in ("x", "dout", "dweight"))
    dbias = tensors["dbias"] if problem.bias == "yes" else None
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        matmul.allow_tf32 = ALLOW_TF32
        torch.mm(dout.T, x, out=dweight)
        if dbias is not None:
            torch.sum(dout, 0, out=dbias)

    launch = torch_launch(run)
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
