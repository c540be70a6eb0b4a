"""Average pooling of volumes, images and lines by PyTorch.

/// opbench
title    = "aten::avg_pool3d.out and avg_pool2d.out for one layer"
modules  = ["cupy", "torch"]
supports = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
///

Volumes of one layer take the operator for images, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = tensors["x"], tensors["out"]
    windows = [problem.window_d, problem.window_h, problem.window_w]
    paddings = [problem.padding_d, problem.padding_h, problem.padding_w]
    if problem.d == 1:
        x, out = x.squeeze(2), out.squeeze(2)
    skipped = 5 - x.dim()
    window, padding = windows[skipped:], paddings[skipped:]
    stride, count_padding = [problem.stride] * len(window), problem.divisor == "window"
    aten, ceiling = torch.ops.aten, False
    pool = aten.avg_pool2d.out if skipped else aten.avg_pool3d.out

    def run() -> None:
        pool(x, window, stride, padding, ceiling, count_padding, None, out=out)

    return torch_launch(run)
