"""Cross entropy of rows of logits and its gradient by PyTorch.

/// opbench
title    = "aten::_log_softmax, nll_loss_forward, nll_loss_backward and _log_softmax_backward_data, all with out"
modules  = ["cupy", "torch"]
supports = { dtype = ["f32", "bf16"], gradient = ["yes", "no"] }
///

What torch.nn.functional.cross_entropy calls, and autograd behind it: the logarithms and their gradient go through
memory. Its labels are int64; they are converted once a call, and so are logits in bf16, to float32 and their gradient
back, as programs do that train: PyTorch would round the loss to bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    logits, labels, loss, dlogits = (tensors.get(name) for name in ("logits", "labels", "loss", "dlogits"))
    wide, logs, total = (
        torch.empty_like(labels, dtype=torch.int64),
        torch.empty_like(logits, dtype=torch.float32),
        torch.empty((), dtype=torch.float32, device=logits.device),
    )
    converted = logits.dtype != torch.float32
    source = torch.empty_like(logs) if converted else logits
    dlogs = torch.empty_like(logs) if dlogits is not None else None
    target = torch.empty_like(logs) if converted and dlogits is not None else dlogits
    weight = torch.full((), 1 / problem.micro, dtype=torch.float32, device=logits.device)
    aten, mean, ignored = torch.ops.aten, 1, -100

    def run() -> None:
        wide.copy_(labels)
        if converted:
            source.copy_(logits)
        aten._log_softmax.out(source, 1, False, out=logs)
        aten.nll_loss_forward.output(logs, wide, None, mean, ignored, output=loss[0], total_weight=total)
        loss.mul_(weight)
        if dlogits is None:
            return
        aten.nll_loss_backward.grad_input(weight, logs, wide, None, mean, ignored, total, grad_input=dlogs)
        aten._log_softmax_backward_data.out(dlogs, logs, 1, torch.float32, out=target)
        if converted:
            dlogits.copy_(target)

    return torch_launch(run)
