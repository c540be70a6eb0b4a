"""Histograms by PyTorch.

/// opbench
title   = "torch.histc"
modules = ["cupy", "torch"]

[supports]
low   = ["negated", "zero"]
dtype = ["f32"]
///

One kernel with a histogram per block in shared memory. Counts are a new tensor of float32, which is exact up to 2^24;
their copy into the output is not timed. PyTorch has no such kernel for bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream; `collect` fills buffers["counts"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, counts = tensors["x"], tensors["counts"]
    low, high = problem.lower_edge, problem.high
    return torch_launch(lambda: [torch.histc(x, problem.bins, low, high)], [counts])
