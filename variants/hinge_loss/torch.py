"""The hinge loss and its gradient by PyTorch.

/// opbench
title    = "torch.clamp(1 - x * target, min=0) and its sum; the gradient by torch.where"
modules  = ["cupy", "torch"]
///

PyTorch has no operator for this loss. The calls are those of its formula and of its gradient: five passes over arrays
of the size of x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, target, loss, dx = (tensors[name] for name in ("x", "target", "loss", "dx"))
    zero = torch.zeros((), dtype=x.dtype, device=x.device)

    def run() -> None:
        margin = 1 - x * target
        torch.div(margin.clamp(min=0).sum().reshape(1), problem.count, out=loss)
        torch.where(margin >= 0, target / -problem.count, zero, out=dx)

    return torch_launch(run)
