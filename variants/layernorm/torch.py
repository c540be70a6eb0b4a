"""Layer normalisation by PyTorch.

/// opbench
title    = "torch.native_layer_norm"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. On a GPU it
wants weight and bias in the type of the rows, so with bf16 rows each call converts both. A residual is added by a call
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, weight, bias, added = (tensors.get(name) for name in ("x", "weight", "bias", "residual"))
    outputs = [tensors[name] for name in ("out", "mean", "rstd")]

    def run() -> Sequence[Any]:
        rows = x if added is None else torch.add(x, added, out=tensors["sum"])
        return torch.native_layer_norm(rows, [problem.cols], weight.to(x.dtype), bias.to(x.dtype), problem.epsilon)

    return torch_launch(run, outputs)
