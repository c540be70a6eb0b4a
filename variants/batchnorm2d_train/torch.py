"""Batch normalisation in training by PyTorch.

/// opbench
title    = "aten::_batch_norm_with_update, by cuDNN where PyTorch takes that, and the ReLU of its result"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
requires = ["n * h * w > 1"]
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. Its form with out=
counts references to its results wrongly in PyTorch 2.11, as cuDNN's own does: the process dies in a later garbage
collection. Running statistics, a few numbers a channel, are copied first, as it updates them where they are. The nhwc
layout is the same call on permuted views, which PyTorch calls channels_last.
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

    x, out = seen("x"), seen("out")
    scale, shift, mean, rstd = (tensors[name] for name in ("scale", "shift", "mean", "rstd"))
    running = [tensors[f"running_{name}"] for name in ("mean", "variance")]
    updated = [tensors[f"new_running_{name}"] for name in ("mean", "variance")]
    normalise, momentum = torch.ops.aten._batch_norm_with_update, problem.momentum_percent / 100

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            for old, new in zip(running, updated, strict=True):
                new.copy_(old)
            found, *moments, _ = normalise(x, scale, shift, *updated, momentum, problem.epsilon)
            if problem.epilogue == "relu":
                torch.clamp_min(found, 0.0, out=out)
            returned[:] = [found, *moments]

    def collect() -> None:
        with torch.no_grad(), on_stream():
            if problem.epilogue == "none":
                out.copy_(returned[0])
            for to, moment in zip((mean, rstd), returned[1:], strict=True):
                to.copy_(moment)

    run.collect = collect  # type: ignore[attr-defined]
    run()  # tries algorithms and takes workspaces outside of any capture
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
