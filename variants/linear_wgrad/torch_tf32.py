"""cuBLAS through PyTorch: what autograd calls for the weight and the bias of a linear layer.

/// opbench
title     = "torch.mm(dout.T, x, out=dweight) in TF32, and torch.sum for the bias"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { bias = ["no", "yes"] }
///

The variant `torch` with TF32 allowed: float32 in memory, products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALLOW_TF32 = True


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    x, dout, dweight = (tensors[name] for name in ("x", "dout", "dweight"))
    dbias = tensors["dbias"] if problem.bias == "yes" else None
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            matmul.allow_tf32 = ALLOW_TF32
            torch.mm(dout.T, x, out=dweight)
            if dbias is not None:
                torch.sum(dout, 0, out=dbias)

    run()  # tries algorithms and takes workspaces outside of any capture
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
