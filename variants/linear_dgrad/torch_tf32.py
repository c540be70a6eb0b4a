"""cuBLAS through PyTorch: what autograd calls for the input of a linear layer.

/// opbench
title     = "torch.mm(dout, weight, out=dx) in TF32; threshold_backward behind it for the mask"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { epilogue = ["none", "mask"] }
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
    dout, weight, dx = (tensors[name] for name in ("dout", "weight", "dx"))
    out = tensors["out"] if problem.epilogue == "mask" else None
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = ALLOW_TF32, False
            torch.mm(dout, weight, out=dx)
            if out is not None:
                torch.ops.aten.threshold_backward.grad_input(dx, out, 0, grad_input=dx)

    run()  # tries algorithms and takes workspaces outside of any capture
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
