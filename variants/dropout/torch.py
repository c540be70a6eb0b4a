"""Dropout at inference by PyTorch.

/// opbench
title    = "torch out.copy_(x), which is dropout at inference"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

In training PyTorch draws a mask of its own from Philox, with other counters, which no reference here could repeat.
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
