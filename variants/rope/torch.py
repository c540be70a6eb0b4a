"""Rotation of pairs by PyTorch.

/// opbench
title    = "torch: two products, swapped pairs and a sum in the dtype of x, as models in PyTorch write it"
modules  = ["cupy", "torch"]
supports = { pairs = ["halves", "neighbours"], direction = ["forward", "backward"], dtype = ["f32"] }
///

PyTorch has no function for it. In bf16 models differ in what they round; in float32 they compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, cos, sin = (tensors[name] for name in ("x", "cos", "sin"))
    halves = problem.pairs == "halves"

    def of_both(table: Any) -> Any:
        """Return a table with an entry for each element of a pair: small work, as the tables serve all heads."""
        return (torch.cat((table, table), -1) if halves else table.repeat_interleave(2, -1))[None, :, None]

    def run() -> Sequence[Any]:
        if halves:
            first, second = x.chunk(2, -1)
            swapped = torch.cat((-second, first), -1)
        else:
            swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        turned = swapped * of_both(sin)
        return [x * of_both(cos) + (-turned if problem.direction == "backward" else turned)]

    return torch_launch(run, [tensors["out"]])
