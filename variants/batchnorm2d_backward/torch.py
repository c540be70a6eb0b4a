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

from collections.abc import Callable, Sequence
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, dout, dx = (nchw_view(tensors[name], problem.layout) for name in ("x", "dout", "dx"))
    scale, mean, rstd, dscale, dshift = (tensors[name] for name in ("scale", "mean", "rstd", "dscale", "dshift"))
    backward, wanted = torch.ops.aten.native_batch_norm_backward, [True, True, True]

    def run() -> Sequence[Any]:
        return backward(dout, x, scale, None, None, mean, rstd, True, problem.epsilon, wanted)

    return torch_launch(run, [dx, dscale, dshift])
