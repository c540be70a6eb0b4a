"""Scans by PyTorch.

/// opbench
title   = "torch.cumsum or cumprod along the row, between two flips for the reverse direction"
modules = ["cupy", "torch"]

[supports]
op        = ["sum", "prod"]
direction = ["forward", "reverse"]
mask      = ["none", "given"]
dtype     = ["f32", "bf16"]
///

A mask costs a pass of `torch.where` before the scan. PyTorch has no scan in the other direction, and no exclusive one:
users reverse the rows before and after it. On a GPU it adds bf16 numbers in bf16, so that sums along rows of a thousand
columns are judged wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = tensors["x"], tensors["out"]
    scan = torch.cumsum if problem.op == "sum" else torch.cumprod

    neutral = torch.tensor(float(problem.op == "prod"), dtype=x.dtype, device=x.device)

    def counted() -> Any:
        return torch.where(tensors["mask"].view(torch.bool), x, neutral) if problem.mask == "given" else x

    def forward() -> None:
        scan(counted(), 1, out=out)

    def reverse() -> Sequence[Any]:
        return [scan(counted().flip(1), 1).flip(1)]

    return torch_launch(forward) if problem.direction == "forward" else torch_launch(reverse, [out])
