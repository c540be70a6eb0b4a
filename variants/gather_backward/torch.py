"""The gradient of an embedding by PyTorch.

/// opbench
title    = "torch.ops.aten.embedding_dense_backward"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

Its sums have the dtype of the gradient, so for bf16 they are rounded to it, and converted after the timed call. The
indices are int32, as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["ddata"]."""
    import torch

    tensors = torch_tensors(problem, buffers)

    def run() -> Sequence[Any]:
        return [torch.ops.aten.embedding_dense_backward(tensors["dbatch"], tensors["order"], problem.items, -1, False)]

    return torch_launch(run, [tensors["ddata"]])
