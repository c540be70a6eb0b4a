"""The gradient of ReLU by PyTorch.

/// opbench
title    = "aten::threshold_backward.grad_input, which autograd calls for torch.relu"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

One kernel of vectorised elements, as all of PyTorch's element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    out, dout, dx = (tensors[name] for name in ("out", "dout", "dx"))

    def run() -> None:
        torch.ops.aten.threshold_backward.grad_input(dout, out, 0, grad_input=dx)

    return torch_launch(run)
