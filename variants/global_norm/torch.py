"""The norm of a gradient, and the factor that clips it, by PyTorch.

/// opbench
title    = "torch.linalg.vector_norm, add, reciprocal, mul and clamp: what clip_grad_norm_ calls for one flat gradient"
modules  = ["cupy", "torch"]
///

The norm is two kernels, as block sums are added by the last block; the factor takes four more of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    gradient, limit, norm, factor = (tensors[name] for name in ("gradient", "limit", "norm", "factor"))

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.linalg.vector_norm(gradient, 2, 0, keepdim=True, out=norm)
            torch.add(norm, 1e-6, out=factor)
            torch.div(limit, factor, out=factor)
            factor.clamp_(max=1.0)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
