"""Group normalisation by PyTorch.

/// opbench
title    = "torch.native_group_norm and its activation"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. SiLU writes
into the output. It wants weight and bias in the type of the image, so with bf16 each call converts both. nhwc is copied
to nchw first, as torch.nn.functional.group_norm does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
    x, weight, bias, out = (tensors[name] for name in ("x", "weight", "bias", "out"))
    image = x.unsqueeze(-1)
    if problem.layout == "nhwc":
        image, out = x.unsqueeze(2).permute(0, 3, 1, 2), out.transpose(1, 2)
    sizes = (problem.batch, problem.channels, problem.pixels, problem.groups)

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            found, mean, rstd = torch.native_group_norm(
                image.contiguous(), weight.to(x.dtype), bias.to(x.dtype), *sizes, problem.epsilon
            )
            returned[:] = [found.squeeze(-1), mean, rstd]
            if problem.activation == "silu":
                torch.ops.aten.silu.out(returned[0], out=out)

    def collect() -> None:
        with torch.no_grad(), on_stream():
            if problem.activation == "none":
                out.copy_(returned[0])
            tensors["mean"].copy_(returned[1])
            tensors["rstd"].copy_(returned[2])

    run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
