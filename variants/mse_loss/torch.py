"""The mean square error and its gradient by PyTorch.

/// opbench
title    = "aten::mse_loss and mse_loss_backward.grad_input"
modules  = ["cupy", "torch"]
///

What torch.nn.functional.mse_loss calls, and autograd behind it: x and target are read twice, and the squares are
written in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    x, target, loss, dx = (tensors[name] for name in ("x", "target", "loss", "dx"))
    mean, weight = 1, torch.full((), 1 / problem.micro, dtype=x.dtype, device=x.device)

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.mul(torch.ops.aten.mse_loss(x, target, mean).reshape(1), weight, out=loss)
            torch.ops.aten.mse_loss_backward.grad_input(weight, x, target, mean, grad_input=dx)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
