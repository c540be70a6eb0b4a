"""The gradient of upsampling by PyTorch.

/// opbench
title    = "aten::upsample_nearest2d_backward or upsample_bilinear2d_backward, with grad_input"
modules  = ["cupy", "torch"]
supports = { mode = ["nearest", "bilinear"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

What autograd calls for torch.nn.functional.interpolate. The bilinear kernel clears dx and adds to it with float
atomics, so that its bits vary from run to run. The nhwc layout is the same call on permuted views, which PyTorch
calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}

    def seen(name: str) -> Any:
        """In the order nchw, as PyTorch has it; nhwc is its channels_last."""
        return tensors[name].permute(0, 3, 1, 2) if problem.layout == "nhwc" else tensors[name]

    dout, dx = seen("dout"), seen("dx")
    size, scale = [problem.p, problem.q], float(problem.scale)
    small = [problem.n, problem.c, problem.h, problem.w]
    aten, align_corners = torch.ops.aten, False

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            if problem.mode == "nearest":
                aten.upsample_nearest2d_backward.grad_input(dout, size, small, scale, scale, grad_input=dx)
            else:
                aten.upsample_bilinear2d_backward.grad_input(
                    dout, size, small, align_corners, scale, scale, grad_input=dx
                )

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
