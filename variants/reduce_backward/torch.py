"""Gradients of reductions by PyTorch.

/// opbench
title   = "torch expand, then copy or division, or a product with a sign or a quotient"
modules = ["cupy", "torch"]

[supports]
op    = ["sum", "mean", "l1", "l2"]
dtype = ["f32", "bf16"]
///

PyTorch's gradient of a sum is a view without memory of its own; here it is written, as its consumer would read it. The
gradient of l2 also sets results of a norm 0 to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["dx"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dx, dout = tensors["dx"], tensors["dout"].unsqueeze(1)
    x, norm = tensors.get("x"), tensors.get("out")

    def l1() -> None:
        torch.sign(x, out=dx)
        torch.mul(dx, dout, out=dx)

    def l2() -> None:
        torch.mul(x, (dout / norm.unsqueeze(1)).masked_fill_(norm.unsqueeze(1) == 0, 0), out=dx)

    calls: dict[str, Callable[[], object]] = {
        "sum": lambda: dx.copy_(dout.expand_as(dx)),
        "mean": lambda: torch.div(dout.expand_as(dx), problem.axis, out=dx),
        "l1": l1,
        "l2": l2,
    }
    return torch_launch(calls[problem.op])
