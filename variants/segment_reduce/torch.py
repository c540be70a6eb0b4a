"""Sums of segments by PyTorch.

/// opbench
title    = "torch.segment_reduce(x, op, offsets=offsets)"
modules  = ["cupy", "torch"]
supports = { op = ["sum", "mean"], dtype = ["f32"] }
///

PyTorch returns a new tensor; the copy into the output is not timed. It adds bf16 numbers in bf16, so the variant
supports float32 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the reduction."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, offsets = tensors["x"], tensors["offsets"]
    return torch_launch(
        lambda: (torch.segment_reduce(x, problem.op, offsets=offsets, axis=0, unsafe=True, initial=0),),
        [tensors["out"]],
    )
