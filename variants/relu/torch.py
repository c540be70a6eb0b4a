"""ReLU by PyTorch.

/// opbench
title    = "torch.clamp_min(x, 0, out=out), the kernel behind torch.relu"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

torch.relu has no out argument; clamp_min with the bound 0 is what it calls (aten/src/ATen/native/Activation.cpp).
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
        torch.clamp_min(x, 0.0, out=out)

    return torch_launch(run)
