"""The gradient of group normalisation by PyTorch.

/// opbench
title    = "torch.ops.aten.native_group_norm_backward, after the gradient of the activation"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. SiLU needs the
normalised image, which opbench's kernels compute again from the statistics: here the forward pass does, and is timed.
The statistics and the weight are converted to the type of the image, and nhwc is copied to nchw, as in that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, dout, dx = (tensors[name] for name in ("x", "dout", "dx"))
    if problem.layout == "nhwc":
        x, dout, dx = (tensor.transpose(1, 2) for tensor in (x, dout, dx))
    sizes = (problem.batch, problem.channels, problem.pixels, problem.groups)
    aten = torch.ops.aten

    def run() -> Sequence[Any]:
        image, gradient = x.contiguous(), dout
        weight, mean, rstd = (tensors[name].to(x.dtype) for name in ("weight", "mean", "rstd"))
        if problem.activation == "silu":
            bias = tensors["bias"].to(x.dtype)
            normalised, _, _ = torch.native_group_norm(image, weight, bias, *sizes, problem.epsilon)
            gradient = aten.silu_backward(dout, normalised)
        return aten.native_group_norm_backward(
            gradient.contiguous(), image, mean, rstd, weight, *sizes, [True, True, True]
        )

    return torch_launch(run, [dx, tensors["dweight"], tensors["dbias"]])
