"""Cross entropy of rows of logits and its gradient by PyTorch.

/// opbench
title    = "aten::_log_softmax, nll_loss_forward, nll_loss_backward and _log_softmax_backward_data, all with out"
modules  = ["cupy", "torch"]
///

What torch.nn.functional.cross_entropy calls, and autograd behind it: the logarithms and their gradient go through
memory. Its labels are int64; they are converted once a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    logits, labels, loss, dlogits = (tensors[name] for name in ("logits", "labels", "loss", "dlogits"))
    wide, logs, dlogs = (
        torch.empty_like(labels, dtype=torch.int64),
        torch.empty_like(logits),
        torch.empty_like(logits),
    )
    total = torch.empty((), dtype=logits.dtype, device=logits.device)
    weight = torch.full((), 1 / problem.micro, dtype=logits.dtype, device=logits.device)
    aten, mean, ignored = torch.ops.aten, 1, -100

    def run() -> None:
        wide.copy_(labels)
        aten._log_softmax.out(logits, 1, False, out=logs)
        aten.nll_loss_forward.output(logs, wide, None, mean, ignored, output=loss[0], total_weight=total)
        loss.mul_(weight)
        aten.nll_loss_backward.grad_input(weight, logs, wide, None, mean, ignored, total, grad_input=dlogs)
        aten._log_softmax_backward_data.out(dlogs, logs, 1, logits.dtype, out=dlogits)

    return torch_launch(run)
