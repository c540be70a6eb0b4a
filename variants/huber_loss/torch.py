"""The Huber loss and its gradient by PyTorch.

/// opbench
title    = "aten::smooth_l1_loss and smooth_l1_loss_backward.grad_input"
modules  = ["cupy", "torch"]
///

What torch.nn.functional.smooth_l1_loss calls, and autograd behind it: x and target are read twice, and the terms are
written in between.
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
    mean, beta, weight = 1, 1.0, torch.full((), 1 / problem.micro, dtype=x.dtype, device=x.device)

    def run() -> None:
        torch.mul(torch.ops.aten.smooth_l1_loss(x, target, mean, beta).reshape(1), weight, out=loss)
        torch.ops.aten.smooth_l1_loss_backward.grad_input(weight, x, target, mean, beta, grad_input=dx)

    return torch_launch(run)
