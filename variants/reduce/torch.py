"""Reductions along an axis by PyTorch.

/// opbench
title    = "torch.sum, mean, amax, amin, prod, argmax, argmin or linalg.vector_norm along the axis"
modules  = ["cupy", "torch"]
requires = ["op != 'prod' or dtype == 'f32'"]

[supports]
op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
dtype = ["f32", "bf16"]
///

One general reduction kernel. Indices are a new tensor of int64; their copy into the output is not timed. Products of
bf16 are not supported, because PyTorch rounds each partial product to bf16 on the CPU, where this file is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = tensors["x"], tensors["out"]
    norm = torch.linalg.vector_norm
    calls: dict[str, Callable[[], Any]] = {
        "sum": lambda: torch.sum(x, 1, out=out),
        "mean": lambda: torch.mean(x, 1, out=out),
        "max": lambda: torch.amax(x, 1, out=out),
        "min": lambda: torch.amin(x, 1, out=out),
        "prod": lambda: torch.prod(x, 1, out=out),
        "l1": lambda: norm(x, 1, 1, out=out),
        "l2": lambda: norm(x, 2, 1, out=out),
        "argmax": lambda: [torch.argmax(x, 1)],
        "argmin": lambda: [torch.argmin(x, 1)],
    }
    return torch_launch(calls[problem.op], [out] if problem.has_index else ())
