"""The gradient of normalisation by the root mean square by PyTorch.

/// opbench
title    = "torch.ops.aten._fused_rms_norm_backward"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. On a GPU it
wants the weight in the type of the rows, so with bf16 rows each call converts it. The gradient from elsewhere is added
by a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, dout, weight, dsum = (tensors.get(name) for name in ("x", "dout", "weight", "dsum"))
    rstd = tensors["rstd"].view(-1, 1)

    def run() -> Sequence[Any]:
        own = weight.to(x.dtype)
        dx, dweight = torch.ops.aten._fused_rms_norm_backward(dout, x, [problem.cols], rstd, own, [True, True])
        if dsum is None:
            return [dx, dweight]
        torch.add(dx, dsum, out=tensors["dx"])
        return [dweight]

    names = ("dweight",) if dsum is not None else ("dx", "dweight")
    return torch_launch(run, [tensors[name] for name in names])
