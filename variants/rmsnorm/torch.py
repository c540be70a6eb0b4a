"""Normalisation by the root mean square, by PyTorch.

/// opbench
title    = "torch.ops.aten._fused_rms_norm"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. On a GPU it
wants the weight in the type of the rows, so with bf16 rows each call converts it. A residual is added by a call before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    x, weight, added = (tensors.get(name) for name in ("x", "weight", "residual"))
    outputs = [tensors[name] for name in ("out", "rstd")]

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            rows = x if added is None else torch.add(x, added, out=tensors["sum"])
            found = torch.ops.aten._fused_rms_norm(rows, [problem.cols], weight.to(x.dtype), problem.epsilon)
            returned[:] = found

    def collect() -> None:
        with torch.no_grad(), on_stream():
            for to, value in zip(outputs, returned, strict=True):
                to.copy_(value.view_as(to))

    run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
