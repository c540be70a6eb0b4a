"""Splitting by PyTorch.

/// opbench
title    = "torch.split_with_sizes_copy(x, (c1, c2), out=(a, b))"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

torch.split itself returns views and moves nothing. In nhwc the channels are the last axis of the contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the outputs' buffers."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, a, b = (tensors[name] for name in ("x", "a", "b"))
    axis = 1 if problem.layout == "nchw" else 3

    def run() -> None:
        torch.split_with_sizes_copy(x, (problem.c1, problem.c2), axis, out=(a, b))

    return torch_launch(run)
