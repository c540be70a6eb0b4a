"""The gradient of maximum pooling by PyTorch.

/// opbench
title    = "aten::max_pool2d_with_indices again for its indices, then max_pool2d_with_indices_backward.grad_input"
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


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}

    def seen(name: str) -> Any:
        """In the order nchw, as PyTorch has it; nhwc is its channels_last."""
        return tensors[name].permute(0, 3, 1, 2) if problem.layout == "nhwc" else tensors[name]

    x, dout, dx = seen("x"), seen("dout"), seen("dx")
    skip = seen("skip") if problem.epilogue == "add" else None
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pooled, indices = torch.empty_like(dout), torch.empty_like(dout, dtype=torch.int64)
    aten = torch.ops.aten

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            aten.max_pool2d_with_indices.out(x, window, stride, padding, [1, 1], False, out=pooled, indices=indices)
            backward = aten.max_pool2d_with_indices_backward.grad_input
            backward(dout, x, window, stride, padding, [1, 1], False, indices, grad_input=dx)
            if skip is not None:
                dx.add_(skip)
            elif problem.epilogue == "mask":
                aten.threshold_backward.grad_input(dx, x, 0, grad_input=dx)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
