"""The gradient of layer normalisation by PyTorch.

/// opbench
title    = "torch.ops.aten.native_layer_norm_backward"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. On a GPU it
wants the weight in the type of the rows, so with bf16 rows each call converts it. The gradient from elsewhere is added
by a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    x, dout, weight, dsum = (tensors.get(name) for name in ("x", "dout", "weight", "dsum"))
    mean, rstd = (tensors[name].view(-1, 1) for name in ("mean", "rstd"))

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            own = weight.to(x.dtype)
            dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                dout, x, [problem.cols], mean, rstd, own, own, [True, True, True]
            )
            returned[:] = [dx, dweight, dbias]
            if dsum is not None:
                torch.add(dx, dsum, out=tensors["dx"])

    def collect() -> None:
        with torch.no_grad(), on_stream():
            for name, value in zip(("dx", "dweight", "dbias"), returned, strict=True):
                if name != "dx" or dsum is None:
                    tensors[name].copy_(value)

    run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
