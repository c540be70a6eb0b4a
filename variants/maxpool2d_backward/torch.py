"""The gradient of maximum pooling by PyTorch.

/// opbench
title    = "aten::max_pool2d_with_indices for the indices, then max_pool2d_with_indices_backward.grad_input"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "add", "mask"] }
///

Autograd keeps the forward pass's indices, 8 bytes each, where this problem searches x: what the search takes is
measured by maxpool2d/torch. Overlapping windows in channels_last are added with float atomics, so that bits vary from
run to run. The gradient that there is already, and the mask, follow as operations of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, dout, dx = (nchw_view(tensors[name], problem.layout) for name in ("x", "dout", "dx"))
    skip = nchw_view(tensors["skip"], problem.layout) if problem.epilogue == "add" else None
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pooled, indices = torch.empty_like(dout), torch.empty_like(dout, dtype=torch.int64)
    aten = torch.ops.aten

    def run() -> None:
        aten.max_pool2d_with_indices.out(x, window, stride, padding, [1, 1], False, out=pooled, indices=indices)
        backward = aten.max_pool2d_with_indices_backward.grad_input
        backward(dout, x, window, stride, padding, [1, 1], False, indices, grad_input=dx)
        if skip is not None:
            dx.add_(skip)
        elif problem.epilogue == "mask":
            aten.threshold_backward.grad_input(dx, x, 0, grad_input=dx)

    return torch_launch(run)
