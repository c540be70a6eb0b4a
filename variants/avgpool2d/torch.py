"""Average pooling by PyTorch.

/// opbench
title    = "aten::avg_pool2d.out, the kernel behind torch.nn.functional.avg_pool2d"
modules  = ["cupy", "torch"]
supports = { divisor = ["window", "inside"], layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

The nhwc layout is the same call on permuted views, which PyTorch calls channels_last.
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
    count_padding = problem.divisor == "window"
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pool, ceiling = torch.ops.aten.avg_pool2d.out, False

    def run() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            pool(x, window, stride, padding, ceiling, count_padding, None, out=out)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    return (
        torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_dlpack(array)
    )
