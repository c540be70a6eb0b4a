"""Stochastic gradient descent by PyTorch.

/// opbench
title    = "aten::_fused_sgd_ (torch.optim with fused=True), after scaling the gradient"
modules  = ["cupy", "torch"]
supports = { momentum = ["no", "yes"], copy = ["none", "bf16"] }
in_place = true
///

PyTorch keeps the rate on the device where it is captured, momentum and decay on the host: those that this problem
draws, always the same. The factor, clipping's, is a kernel of its own, as in clip_grad_norm_; so is the copy in bf16,
as autocast makes one for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    parameter, gradient, rates = (tensors[name] for name in ("parameter", "gradient", "rates"))
    velocity = [tensors["velocity"]] if problem.momentum == "yes" else []
    stored = tensors["stored"] if problem.copy == "bf16" else None
    momentum, _, _, decay = (float(number) for number in replace(problem, n=1).make_inputs(0)["hyper"])
    scaled = torch.empty_like(gradient)
    update = torch.ops.aten._fused_sgd_.tensor_lr

    def run() -> None:
        torch.mul(gradient, rates[3], out=scaled)
        update(
            [parameter], [scaled], velocity, weight_decay=decay, momentum=momentum, lr=rates[0], dampening=0.0,
            nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        if stored is not None:
            stored.copy_(parameter)

    return torch_launch(run)
