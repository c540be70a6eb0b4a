"""Sorts by PyTorch.

/// opbench
title   = "torch.sort, which also returns the indices of the elements"
modules = ["cupy", "torch"]

[supports]
dtype = ["f32", "i32"]
///

CUB's radix sort of pairs: PyTorch has no sort without int64 indices, which are three quarters of its traffic. The
indices are a new tensor.
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
    return torch_launch(lambda: [torch.sort(x).values], [out])
