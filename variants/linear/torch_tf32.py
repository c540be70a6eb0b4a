"""cuBLAS through PyTorch on the matrix units: what a variant of precision tf32 has to be compared with.

/// opbench
title     = "PyTorch's addmm with TF32 allowed, bias and ReLU fused by cublasLt"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { epilogue = ["bias", "bias_relu"] }
compute_capability = "8.0"
///

As torch.py, with TF32 allowed at every call: operands are rounded to 10 bits of mantissa, sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """A callable that enqueues the layer on the current CuPy stream."""
    import cupy
    import torch

    x, weight, bias, out = (torch.as_tensor(buffers[name], device="cuda") for name in ("x", "weight", "bias", "out"))
    transposed, relu = weight.T, problem.epilogue == "bias_relu"
    matmul = torch.backends.cuda.matmul

    def enqueue() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream, for which ExternalStream would make a new one of its own.
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        matmul.allow_tf32 = True
        with torch.no_grad(), torch.cuda.stream(stream):
            if relu:
                torch.ops.aten._addmm_activation.out(bias, x, transposed, out=out)
            else:
                torch.addmm(bias, x, transposed, out=out)

    enqueue()  # loads cuBLAS and its workspace outside of any capture
    return enqueue
