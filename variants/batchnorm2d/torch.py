"""Batch normalisation at inference by PyTorch.

/// opbench
title    = "aten::native_batch_norm.out without training; relu_ behind it where the problem asks for it"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
///

torch.nn.functional.batch_norm has no out argument. The nhwc layout is the same call on permuted views, which PyTorch
calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    names = ("x", "scale", "shift", "mean", "variance", "out")
    x, scale, shift, mean, variance, out = (_tensor(buffers[name], problem.dtype) for name in names)
    if problem.layout == "nhwc":
        x, out = (tensor.permute(0, 3, 1, 2) for tensor in (x, out))
    saved = [torch.empty(0, dtype=torch.float32, device=out.device) for _ in range(2)]  # written in training only
    training, momentum = False, 0.0

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.ops.aten.native_batch_norm.out(
                x, scale, shift, mean, variance, training, momentum, problem.epsilon,
                out=out, save_mean=saved[0], save_invstd=saved[1],
            )  # fmt: skip
            if problem.epilogue == "relu":
                torch.relu_(out)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
