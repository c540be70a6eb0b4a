"""The mean absolute error and its gradient by PyTorch.

/// opbench
title    = "torch sub, abs, mean, sgn and mul, as l1_loss and its backward call them"
modules  = ["cupy", "torch"]
///

Six kernels where one read of both would do. The difference is kept, as autograd does.
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
    kept, sizes = torch.empty_like(x), torch.empty_like(x)

    def run() -> None:
        torch.sub(x, target, out=kept)
        torch.abs(kept, out=sizes)
        torch.mean(sizes, 0, keepdim=True, out=loss)
        loss.div_(problem.micro)
        torch.sgn(kept, out=dx)
        dx.mul_(1 / problem.count)

    return torch_launch(run)
