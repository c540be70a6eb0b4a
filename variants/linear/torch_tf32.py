"""cuBLAS through PyTorch on the matrix units: what a variant of precision tf32 has to be compared with.

/// opbench
title     = "torch.addmm with TF32 allowed; cublasLt fuses bias and ReLU or GELU"
precision = "tf32"
modules   = ["cupy", "torch"]
supports  = { epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"] }
compute_capability = "8.0"
///

As torch.py, with TF32 allowed at every call: operands are rounded to 10 bits of mantissa, sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_activate, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the layer on the current CuPy stream."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out, bias, transposed = tensors["x"], tensors["out"], tensors.get("bias"), tensors["weight"].T
    gelu, fused = problem.activation == "gelu_tanh", problem.activation in ("relu", "gelu_tanh")
    matmul = torch.backends.cuda.matmul

    def run() -> None:
        matmul.allow_tf32 = True
        if bias is None:
            torch.mm(x, transposed, out=out)
        elif fused:
            torch.ops.aten._addmm_activation.out(bias, x, transposed, use_gelu=gelu, out=out)
        else:
            torch.addmm(bias, x, transposed, out=out)
            torch_activate(out, problem.activation)

    launch = torch_launch(run)
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
