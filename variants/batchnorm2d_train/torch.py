"""Batch normalisation in training by PyTorch.

/// opbench
title    = "aten::_batch_norm_with_update (cuDNN where PyTorch chooses it), followed by sum and ReLU"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
requires = ["n * h * w > 1"]
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. Its form with out=
counts references to its results wrongly in PyTorch 2.11, as cuDNN's own does: the process dies in a later garbage
collection. Running statistics, a few numbers a channel, are copied first, as it updates them where they are. The nhwc
layout is the same call on permuted views, which PyTorch calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = (nchw_view(tensors[name], problem.layout) for name in ("x", "out"))
    residual = nchw_view(tensors["residual"], problem.layout) if problem.has_residual else None
    scale, shift, mean, rstd = (tensors[name] for name in ("scale", "shift", "mean", "rstd"))
    running = [tensors[f"running_{name}"] for name in ("mean", "variance")]
    updated = [tensors[f"new_running_{name}"] for name in ("mean", "variance")]
    normalise, momentum = torch.ops.aten._batch_norm_with_update, problem.momentum_percent / 100

    def run() -> Sequence[Any]:
        for old, new in zip(running, updated, strict=True):
            new.copy_(old)
        normalised, *moments, _ = normalise(x, scale, shift, *updated, momentum, problem.epsilon)
        if problem.has_residual:
            torch.add(normalised, residual, out=out)
            if problem.has_relu:
                out.clamp_min_(0.0)
            return moments
        if problem.has_relu:
            torch.clamp_min(normalised, 0.0, out=out)
            return moments
        return [normalised, *moments]

    launch = torch_launch(run, [out, mean, rstd] if problem.epilogue == "none" else [mean, rstd])
    launch()  # tries algorithms and takes workspaces outside of any capture
    return launch
