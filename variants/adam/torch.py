"""Adam and AdamW by PyTorch.

/// opbench
title    = "aten::_fused_adam_ or _fused_adamw_ (torch.optim with fused=True), after scaling the gradient"
modules  = ["cupy", "torch"]
supports = { decay = ["none", "coupled", "decoupled"], copy = ["none", "bf16"] }
in_place = true
///

PyTorch keeps the rate on the device where it is captured, the other constants on the host: those that this problem
draws, always the same. Its count of steps follows here from the second correction, as an update of one number before
each step would. The factor, clipping's, is a kernel of its own, as in clip_grad_norm_; so is the copy in bf16, as
autocast makes one for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    names = ("parameter", "gradient", "moment1", "moment2", "rates")
    parameter, gradient, moment1, moment2, rates = (tensors[name] for name in names)
    stored = tensors["stored"] if problem.copy == "bf16" else None
    beta1, beta2, epsilon, decay = (float(number) for number in type(problem)(n=1).make_inputs(0)["hyper"])
    scaled, step = torch.empty_like(gradient), torch.empty_like(rates[2])
    update = torch.ops.aten._fused_adamw_ if problem.decay == "decoupled" else torch.ops.aten._fused_adam_
    weight_decay = 0.0 if problem.decay == "none" else decay

    def run() -> None:
        torch.mul(gradient, rates[3], out=scaled)
        torch.round(rates[2].reciprocal().neg_().log1p_().div_(math.log(beta2)), out=step)
        update.tensor_lr(
            [parameter], [scaled], [moment1], [moment2], [], [step], lr=rates[0], beta1=beta1, beta2=beta2,
            weight_decay=weight_decay, eps=epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip
        if stored is not None:
            stored.copy_(parameter)

    return torch_launch(run)
