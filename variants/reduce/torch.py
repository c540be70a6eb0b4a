"""Reductions along an axis by PyTorch.

/// opbench
title    = "torch.sum, mean, amax, amin, prod, argmax, argmin or linalg.vector_norm along the axis"
modules  = ["cupy", "torch"]
requires = ["op != 'prod' or dtype == 'f32'"]

[supports]
op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
dtype = ["f32", "bf16"]
///

One general reduction kernel. Indices are a new tensor of int64; their copy into the output is not timed. Products of
bf16 are not supported, because PyTorch rounds each partial product to bf16 on the CPU, where this file is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch

    x, out = (_tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors()))
    norm = torch.linalg.vector_norm
    calls: dict[str, Callable[[], Any]] = {
        "sum": lambda: torch.sum(x, 1, out=out),
        "mean": lambda: torch.mean(x, 1, out=out),
        "max": lambda: torch.amax(x, 1, out=out),
        "min": lambda: torch.amin(x, 1, out=out),
        "prod": lambda: torch.prod(x, 1, out=out),
        "l1": lambda: norm(x, 1, 1, out=out),
        "l2": lambda: norm(x, 2, 1, out=out),
        "argmax": lambda: torch.argmax(x, 1),
        "argmin": lambda: torch.argmin(x, 1),
    }
    call = calls[problem.op]
    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            returned[:] = [call()]

    def collect() -> None:
        with torch.no_grad(), on_stream():
            out.copy_(returned[0])

    if problem.has_index:
        run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
