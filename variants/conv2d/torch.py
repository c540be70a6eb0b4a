"""cuDNN through PyTorch, in true float32, reading and writing the given buffers without a copy.

/// opbench
title     = "cuDNN's fastest float32 algorithm for this problem, chosen by cudnn.benchmark"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { layout = ["nchw", "nhwc"] }
///

`aten::cudnn_convolution.out` is called rather than `torch.nn.functional.conv2d`, which has no `out=` and would need a
copy of the result. The nhwc layout is the same call on permuted views, which PyTorch calls channels_last. The first
call tries every algorithm and must not be captured into a graph, so `bind` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """A callable that enqueues the convolution on the current CuPy stream."""
    import cupy
    import torch

    image, weight, out = (torch.as_tensor(buffers[name], device="cuda") for name in ("image", "weight", "out"))
    if problem.layout == "nhwc":
        image, weight, out = (tensor.permute(0, 3, 1, 2) for tensor in (image, weight, out))
    geometry = ([problem.padding] * 2, [problem.stride] * 2, [1, 1], 1)
    benchmark, deterministic, allow_tf32 = True, False, False
    convolve = torch.ops.aten.cudnn_convolution.out

    def enqueue() -> None:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream, for which ExternalStream would make a new one of its own.
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            convolve(image, weight, *geometry, benchmark, deterministic, allow_tf32, out=out)

    enqueue()
    return enqueue
