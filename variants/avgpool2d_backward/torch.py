"""The gradient of average pooling by PyTorch.

/// opbench
title    = "aten::avg_pool2d_backward.grad_input, what autograd calls for torch.nn.functional.avg_pool2d"
modules  = ["cupy", "torch"]
supports = { divisor = ["window", "inside"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

The nhwc layout is the same call on permuted views, which PyTorch calls channels_last..
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
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    ceiling, count_padding = False, problem.divisor == "window"
    image = torch.empty_like(dx)  # of which only the shape is read
    backward = torch.ops.aten.avg_pool2d_backward.grad_input

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            backward(dout, image, window, stride, padding, ceiling, count_padding, None, grad_input=dx)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
