"""The gradient of softmax by PyTorch.

/// opbench
title    = "aten::_softmax_backward_data.out, what autograd calls for torch.softmax"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"] }
///

Rows of up to 1024 elements are kept in a warp's registers, longer ones are read twice by a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    out, dout, dx = (tensors[name] for name in ("out", "dout", "dx"))

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.ops.aten._softmax_backward_data.out(dout, out, 1, dx.dtype, grad_input=dx)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
