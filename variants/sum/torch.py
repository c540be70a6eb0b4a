"""Sum by PyTorch.

/// opbench
title   = "torch.sum(x, 0, keepdim=True, out=out)"
modules = ["cupy", "torch"]
///

PyTorch's reduction kernel: one launch, blocks that finish last add up the partial sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = (tensors[name] for name in ("x", "out"))

    def run() -> None:
        torch.sum(x, 0, keepdim=True, out=out)

    return torch_launch(run)
