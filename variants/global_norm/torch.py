"""The norm of a gradient, and the factor that clips it, by PyTorch.

/// opbench
title    = "torch.linalg.vector_norm, add, reciprocal, mul and clamp, as clip_grad_norm_ calls them"
modules  = ["cupy", "torch"]
///

The norm is two kernels, as block sums are added by the last block; the factor takes four more of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    gradient, limit, norm, factor = (tensors[name] for name in ("gradient", "limit", "norm", "factor"))

    def run() -> None:
        torch.linalg.vector_norm(gradient, 2, 0, keepdim=True, out=norm)
        torch.add(norm, 1e-6, out=factor)
        torch.div(limit, factor, out=factor)
        factor.clamp_(max=1.0)

    return torch_launch(run)
