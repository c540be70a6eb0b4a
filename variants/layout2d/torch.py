"""Conversion between layouts by PyTorch.

/// opbench
title    = "torch out.copy_(x.permute(...)), which contiguous(memory_format=...) runs"
modules  = ["cupy", "torch"]
supports = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
///

PyTorch copies between strides with one general kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""

    tensors = torch_tensors(problem, buffers)
    x, out = (tensors[name] for name in ("x", "out"))
    x = x.permute((0, 2, 3, 1) if problem.to == "nhwc" else (0, 3, 1, 2))

    def run() -> None:
        out.copy_(x)

    return torch_launch(run)
