"""Concatenation by PyTorch.

/// opbench
title    = "torch.cat((a, b), out=out)"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

In nhwc the channels are the last axis of the contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the outputs' buffers."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = (tensors[name] for name in ("a", "b", "out"))
    axis = 1 if problem.layout == "nchw" else 3

    def run() -> None:
        torch.cat((a, b), axis, out=out)

    return torch_launch(run)
