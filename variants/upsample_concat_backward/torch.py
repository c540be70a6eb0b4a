"""The gradients of an upsampled image joined to another, by PyTorch.

/// opbench
title    = "a copy of the skip's channels, and aten::upsample_nearest2d_backward.grad_input of the others"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

Autograd hands the skip's part on as a view; it is copied here, as whoever adds to it or needs it whole would. The
nhwc layout is the same on permuted views, which PyTorch calls channels_last.
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

    dout, dlow, dskip = seen("dout"), seen("dlow"), seen("dskip")
    size, small = [problem.p, problem.q], [problem.n, problem.c1, problem.h, problem.w]
    skip, large = dout[:, : problem.c2], dout[:, problem.c2 :]
    backward = torch.ops.aten.upsample_nearest2d_backward.grad_input

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            dskip.copy_(skip)
            backward(large, size, small, 2.0, 2.0, grad_input=dlow)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
