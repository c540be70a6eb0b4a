"""Upsampling by PyTorch.

/// opbench
title    = "aten::upsample_nearest2d.out or upsample_bilinear2d.out, the kernels behind torch.nn.functional.interpolate"
modules  = ["cupy", "torch"]
supports = { mode = ["nearest", "bilinear"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

The out variants are the same kernels without allocating on every call. The nhwc layout is the same call on permuted
views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    x, out = (_tensor(buffers[name], problem.dtype) for name in ("x", "out"))
    if problem.layout == "nhwc":
        x, out = (tensor.permute(0, 3, 1, 2) for tensor in (x, out))
    size, scale = [problem.p, problem.q], float(problem.scale)

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            if problem.mode == "nearest":
                torch.ops.aten.upsample_nearest2d.out(x, size, scale, scale, out=out)
            else:
                align_corners = False
                torch.ops.aten.upsample_bilinear2d.out(x, size, align_corners, scale, scale, out=out)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
