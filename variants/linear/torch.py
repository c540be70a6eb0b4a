"""cuBLAS through PyTorch: what a framework's linear layer calls, reading and writing the given buffers.

/// opbench
title     = "torch.addmm in float32 without TF32, bf16 or f16; cublasLt fuses bias and ReLU or GELU"
precision = "f32"
modules   = ["cupy", "torch"]
supports.epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"]
supports.dtype    = ["f32", "bf16", "f16"]
///

`aten::_addmm_activation` is addmm with ReLU or GELU by tanh, which cublasLt does in the product's epilogue; eager
PyTorch's `linear` and `relu` would be two kernels. bf16 and f16 are multiplied on the matrix units; the products are
exact and sums are kept in float32, also where the parts of a split k are added.
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
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
        matmul.allow_fp16_reduced_precision_reduction = False
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
