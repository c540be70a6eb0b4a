"""The gradient of batch normalisation by PyTorch.

/// opbench
title    = "aten::native_batch_norm_backward"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. A ReLU's mask is
not here: autograd keeps the ReLU's output for it, which this problem computes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}

    def seen(name: str) -> Any:
        """In the order nchw, as PyTorch has it; nhwc is its channels_last."""
        return tensors[name].permute(0, 3, 1, 2) if problem.layout == "nhwc" else tensors[name]

    x, dout, dx = seen("x"), seen("dout"), seen("dx")
    scale, mean, rstd, dscale, dshift = (tensors[name] for name in ("scale", "mean", "rstd", "dscale", "dshift"))
    backward, wanted = torch.ops.aten.native_batch_norm_backward, [True, True, True]

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            found = backward(dout, x, scale, None, None, mean, rstd, True, problem.epsilon, wanted)
            returned[:] = found

    def collect() -> None:
        with torch.no_grad(), on_stream():
            for to, source in zip((dx, dscale, dshift), returned, strict=True):
                to.copy_(source)

    run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
