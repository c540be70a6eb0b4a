"""Addition by PyTorch.

/// opbench
title   = "torch.add(a, b, out=out)"
modules = ["cupy", "torch"]
///

PyTorch's vectorised elementwise kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = (tensors[name] for name in ("a", "b", "out"))

    def run() -> None:
        torch.add(a, b, out=out)

    return torch_launch(run)
