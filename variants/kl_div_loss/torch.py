"""The Kullback-Leibler divergence and its gradient by PyTorch.

/// opbench
title    = "torch.nn.functional.kl_div and its gradient, after torch.log if x has no logarithm yet"
modules  = ["cupy", "torch"]
supports = { x_scale = ["log", "linear"] }
///

kl_div computes target * log(target) and target * x apart, in several passes; the gradient is one call.
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
    kl_div, linear = torch.nn.functional.kl_div, problem.x_scale == "linear"

    def run() -> None:
        total = kl_div(torch.log(x) if linear else x, target, reduction="sum")
        torch.div(total.reshape(1), problem.count, out=loss)
        if linear:
            torch.div(target, x, out=dx)
            dx.mul_(-1 / problem.count)
        else:
            torch.mul(target, -1 / problem.count, out=dx)

    return torch_launch(run)
