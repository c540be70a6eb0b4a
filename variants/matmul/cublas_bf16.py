"""cuBLAS on bf16 matrices through PyTorch: what a variant of precision bf16 has to be compared with.

/// opbench
title     = "cuBLAS gemm through PyTorch, bf16 stored and multiplied, float32 sums"
precision = "bf16"
modules   = ["cupy", "torch"]
supports  = { b_order = ["row", "col"], dtype = ["bf16"] }
compute_capability = "8.0"
///

PyTorch rather than CuPy, whose arrays know no bf16: the 16 bits travel as whole numbers and are viewed. The parts of a
split k are added in float32 too, which PyTorch would leave to cuBLAS by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """A call that enqueues out = a @ b on the current stream; b stored by columns is passed as a transposed view."""
    import cupy
    import torch

    def tensor(name: str) -> torch.Tensor:
        return torch.as_tensor(buffers[name].view(cupy.int16), device="cuda").view(torch.bfloat16)

    a, b, out = tensor("a"), tensor("b"), tensor("out")
    if problem.b_order == "col":
        b = b.T
    options = torch.backends.cuda.matmul

    def enqueue() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream, for which ExternalStream would make a new one of its own.
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        options.allow_bf16_reduced_precision_reduction = False
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.mm(a, b, out=out)

    enqueue()  # loads cuBLAS and its workspace outside of any capture
    return enqueue
