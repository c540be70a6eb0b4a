"""The gradient of softmax by PyTorch.

/// opbench
title    = "aten::_softmax_backward_data.out, which autograd calls for torch.softmax"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

Rows of up to 1024 elements are kept in a warp's registers, longer ones are read twice by a block.
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
        torch.ops.aten._softmax_backward_data.out(dout, out, 1, dx.dtype, grad_input=dx)

    return torch_launch(run)
