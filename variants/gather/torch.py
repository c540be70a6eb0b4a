"""Rows of a table by PyTorch.

/// opbench
title    = "torch.index_select(data, 0, order, out=batch)"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16", "i32"], batches = ["one"] }
///

What torch.nn.functional.embedding calls. The indices are int32, as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["batch"]."""
    import torch

    tensors = torch_tensors(problem, buffers)

    def run() -> None:
        torch.index_select(tensors["data"], 0, tensors["order"], out=tensors["batch"])

    return torch_launch(run)
