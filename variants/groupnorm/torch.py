"""Group normalisation by PyTorch.

/// opbench
title    = "torch.native_group_norm, followed by the activation"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
///

It returns new tensors; their copies into the outputs are not timed, as PyTorch would not make them. SiLU writes
into the output. It wants weight and bias in the type of the image, so with bf16 each call converts both. nhwc is copied
to nchw first, as torch.nn.functional.group_norm does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, weight, bias, out = (tensors[name] for name in ("x", "weight", "bias", "out"))
    image = x.unsqueeze(-1)
    if problem.layout == "nhwc":
        image, out = x.unsqueeze(2).permute(0, 3, 1, 2), out.transpose(1, 2)
    sizes = (problem.batch, problem.channels, problem.pixels, problem.groups)

    def run() -> Sequence[Any]:
        normalised_image, mean, rstd = torch.native_group_norm(
            image.contiguous(), weight.to(x.dtype), bias.to(x.dtype), *sizes, problem.epsilon
        )
        normalised = normalised_image.squeeze(-1)
        if problem.activation == "silu":
            torch.ops.aten.silu.out(normalised, out=out)
            return [mean, rstd]
        return [normalised, mean, rstd]

    moments = [tensors["mean"], tensors["rstd"]]
    return torch_launch(run, moments if problem.activation == "silu" else [out, *moments])
