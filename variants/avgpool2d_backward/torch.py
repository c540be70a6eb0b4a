"""The gradient of average pooling by PyTorch.

/// opbench
title    = "aten::avg_pool2d_backward.grad_input, which autograd calls for torch.nn.functional.avg_pool2d"
modules  = ["cupy", "torch"]
supports = { divisor = ["window", "inside"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

The nhwc layout is the same call on permuted views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    dout, dx = (nchw_view(tensors[name], problem.layout) for name in ("dout", "dx"))
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    ceiling, count_padding = False, problem.divisor == "window"
    image = torch.empty_like(dx)  # of which only the shape is read
    backward = torch.ops.aten.avg_pool2d_backward.grad_input

    def run() -> None:
        backward(dout, image, window, stride, padding, ceiling, count_padding, None, grad_input=dx)

    return torch_launch(run)
