"""The triplet margin loss and its gradients by PyTorch.

/// opbench
title    = "torch.nn.functional.triplet_margin_loss and autograd's gradients"
modules  = ["cupy", "torch"]
///

PyTorch composes the loss of a dozen operators, each with a pass of its own, and autograd their gradients. Copies of the
gradients to the buffers are made after the timed interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    inputs = [tensors[name].detach().requires_grad_() for name in ("anchor", "positive", "negative")]
    outputs = [tensors[name] for name in ("loss", "danchor", "dpositive", "dnegative")]
    triplet_margin_loss = torch.nn.functional.triplet_margin_loss

    def run() -> list[torch.Tensor]:
        with torch.enable_grad():
            loss = triplet_margin_loss(*inputs) / problem.micro
            gradients = torch.autograd.grad(loss, inputs)
        return [loss.detach(), *gradients]

    return torch_launch(run, outputs)
