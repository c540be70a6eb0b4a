"""cuBLAS through PyTorch: what a framework's linear layer calls, reading and writing the given buffers.

/// opbench
title     = "PyTorch's addmm in full float32 or on bf16 or f16, bias and ReLU fused by cublasLt"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { epilogue = ["bias", "bias_relu"], dtype = ["f32", "bf16", "f16"] }
///

`aten::_addmm_activation` is addmm with ReLU, which cublasLt does in the product's epilogue; eager PyTorch's
`linear` and `relu` would be two kernels. bf16 and f16 are multiplied on the matrix units; the products are exact and
sums are kept in float32, also where the parts of a split k are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """A callable that enqueues the layer on the current CuPy stream."""
    import cupy
    import torch

    def tensor(name: str) -> torch.Tensor:
        if problem.dtype == "bf16":  # CuPy knows no such type: its 16 bits travel as whole numbers
            return torch.as_tensor(buffers[name].view(cupy.int16), device="cuda").view(torch.bfloat16)
        return torch.as_tensor(buffers[name], device="cuda")

    x, weight, bias, out = (tensor(name) for name in ("x", "weight", "bias", "out"))
    transposed, relu = weight.T, problem.epilogue == "bias_relu"
    matmul = torch.backends.cuda.matmul

    def enqueue() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream, for which ExternalStream would make a new one of its own.
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
        matmul.allow_fp16_reduced_precision_reduction = False
        with torch.no_grad(), torch.cuda.stream(stream):
            if relu:
                torch.ops.aten._addmm_activation.out(bias, x, transposed, out=out)
            else:
                torch.addmm(bias, x, transposed, out=out)

    enqueue()  # loads cuBLAS and its workspace outside of any capture
    return enqueue
