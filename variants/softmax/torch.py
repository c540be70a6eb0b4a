"""Softmax by PyTorch.

/// opbench
title    = "torch.softmax or log_softmax(x, 1, out=out)"
modules  = ["cupy", "torch"]
supports = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
///

Rows of up to 1024 elements are kept in a warp's registers, longer ones are read by a block.
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
    function = torch.log_softmax if problem.log == "yes" else torch.softmax

    def run() -> None:
        function(x, 1, out=out)

    return torch_launch(run)
