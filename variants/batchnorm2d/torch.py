"""Batch normalisation at inference by PyTorch.

/// opbench
title    = "aten::native_batch_norm.out without training, followed by relu_ if the problem has a ReLU"
modules  = ["cupy", "torch"]
supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
///

torch.nn.functional.batch_norm has no out argument. The nhwc layout is the same call on permuted views, which PyTorch
calls channels_last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import nchw_view, torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    names = ("x", "scale", "shift", "mean", "variance", "out")
    tensors = torch_tensors(problem, buffers)
    x, scale, shift, mean, variance, out = (tensors[name] for name in names)
    x, out = (nchw_view(tensor, problem.layout) for tensor in (x, out))
    saved = [torch.empty(0, dtype=torch.float32, device=out.device) for _ in range(2)]  # written in training only
    training, momentum = False, 0.0

    def run() -> None:
        torch.ops.aten.native_batch_norm.out(
            x, scale, shift, mean, variance, training, momentum, problem.epsilon,
            out=out, save_mean=saved[0], save_invstd=saved[1],
        )  # fmt: skip
        if problem.epilogue == "relu":
            torch.relu_(out)

    return torch_launch(run)
