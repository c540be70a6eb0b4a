"""Conversion of dtypes by PyTorch.

/// opbench
title    = "torch out.copy_(x), which Tensor.to(dtype) runs"
modules  = ["cupy", "torch"]
supports = { to = ["bf16", "f32"] }
///

Tensor.to would allocate its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""

    tensors = torch_tensors(problem, buffers)
    x, out = (tensors[name] for name in ("x", "out"))

    def run() -> None:
        out.copy_(x)

    return torch_launch(run)
