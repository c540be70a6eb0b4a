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

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = (nchw_view(tensors[name], problem.layout) for name in ("x", "out"))
    count_padding = problem.divisor == "window"
    window, stride, padding = ([size, size] for size in (problem.window, problem.stride, problem.padding))
    pool, ceiling = torch.ops.aten.avg_pool2d.out, False

    def run() -> None:
        pool(x, window, stride, padding, ceiling, count_padding, None, out=out)

    return torch_launch(run)
