"""A quotient by a norm along one axis by PyTorch.

/// opbench
title    = "torch.linalg.vector_norm or mean, then torch.div"
modules  = ["cupy", "torch"]
supports = { norm = ["l1", "l2", "mean_abs", "rms"] }
///

The calls that a model's code makes. torch.nn.functional.normalize makes those of l1 and l2, with a lower bound for the
norm. x is read at least twice; mean_abs and rms also write and read an array of terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, out = tensors["x"], tensors["out"]
    vector_norm, epsilon = torch.linalg.vector_norm, problem.epsilon
    norm = {
        "l1": lambda: vector_norm(x, ord=1, dim=1, keepdim=True),
        "l2": lambda: vector_norm(x, ord=2, dim=1, keepdim=True),
        "mean_abs": lambda: x.abs().mean(dim=1, keepdim=True),
        "rms": lambda: torch.sqrt(x.square().mean(dim=1, keepdim=True) + epsilon),
    }[problem.norm]

    def run() -> None:
        torch.div(x, norm(), out=out)

    return torch_launch(run)
