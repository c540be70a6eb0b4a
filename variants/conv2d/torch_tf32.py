"""cuDNN through PyTorch in TF32, reading and writing the given buffers without a copy.

/// opbench
title     = "cuDNN's fastest TF32 algorithm for this problem, chosen by cudnn.benchmark"
precision = "tf32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "bias", "bias_relu"]
///

The variant `torch` with TF32 allowed: float32 in memory, products on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALLOW_TF32 = True


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """A callable that enqueues the convolution on the current CuPy stream."""
    import cupy
    import torch

    def tensor(name: str) -> Any:
        return torch.as_tensor(buffers[name], device="cuda")

    image, weight, out = tensor("image"), tensor("weight"), tensor("out")
    if problem.layout == "nhwc":
        image, weight, out = (array.permute(0, 3, 1, 2) for array in (image, weight, out))
    bias = tensor("bias")[:, None, None] if problem.epilogue != "none" else None
    geometry = ([problem.padding] * 2, [problem.stride] * 2, [1, 1], 1)
    benchmark, deterministic = True, False
    convolve = torch.ops.aten.cudnn_convolution.out

    def enqueue() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream, for which ExternalStream would make a new one of its own.
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            convolve(image, weight, *geometry, benchmark, deterministic, ALLOW_TF32, out=out)
            if bias is not None:
                out.add_(bias)
            if problem.epilogue == "bias_relu":
                out.relu_()

    enqueue()
    return enqueue
