"""Sampling by PyTorch.

/// opbench
title    = "torch.sort, float64 cumulative sums, and the first one greater than the random number"
modules  = ["cupy", "torch"]
supports = { filter = ["top_k_top_p", "top_k", "top_p"], dtype = ["f32", "bf16", "f16"] }
///

torch.multinomial draws its own random numbers, so its token cannot be checked. Here the token follows from `uniform`,
as a program does that needs the same tokens in every run. Sums of whole numbers in float64 are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    one, steps_of_one = problem.mass_of_one, problem.steps_of_one

    def steps(share: Any) -> Any:
        return (share.nan_to_num(0).clamp(0, 1).double() * steps_of_one).floor()

    def part(total: Any, steps: Any, rounding: int) -> Any:
        high = (total / steps_of_one).floor()
        low = total - high * steps_of_one
        return high * steps + ((low * steps + rounding) / steps_of_one).floor()

    def run() -> Sequence[Any]:
        clamped = tensors["probabilities"].float().nan_to_num(0, posinf=1).clamp(0, 1)
        masses = (clamped.double() * one).floor()
        ordered = clamped.sort(1, descending=True).values
        smallest = torch.zeros_like(ordered[:, :1])
        if "top_k" in problem.filters:
            smallest = ordered.gather(1, tensors["top_k"].long().clamp(1, problem.cols)[:, None] - 1)
        if "top_p" in problem.filters:
            total = masses.where(clamped >= smallest, 0.0).sum(1)
            wanted = part(total, steps(tensors["top_p"]), steps_of_one - 1).clamp(min=1)[:, None]
            below = ((ordered.double() * one).floor().cumsum(1) < wanted).sum(1, keepdim=True)
            last = ordered.gather(1, below.clamp(max=problem.cols - 1))
            smallest = last.where(below < problem.cols, 0.0)
        sums = masses.where(clamped >= smallest, 0.0).cumsum(1)
        total = sums[:, -1]
        wanted = part(total, steps(tensors["uniform"]).clamp(max=steps_of_one - 1), 0)[:, None]
        token = (sums <= wanted).sum(1).clamp(max=problem.cols - 1)
        share = masses.gather(1, token[:, None])[:, 0] / total.clamp(min=1)
        return [token.where(total > 0, -1), share.where(total > 0, 0.0)]

    return torch_launch(run, [tensors["token"], tensors["probability"]])
