"""The mean absolute error and its gradient by PyTorch.

/// opbench
title    = "sub, abs, mean, sgn and mul: what l1_loss and autograd behind it call"
modules  = ["cupy", "torch"]
///

Six kernels where one read of both would do. The difference is kept, as autograd does.
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
    kept, sizes = torch.empty_like(x), torch.empty_like(x)

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.sub(x, target, out=kept)
            torch.abs(kept, out=sizes)
            torch.mean(sizes, 0, keepdim=True, out=loss)
            loss.div_(problem.micro)
            torch.sgn(kept, out=dx)
            dx.mul_(1 / problem.count)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
