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


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}
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
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        stream = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            wide.copy_(labels)
            aten._log_softmax.out(logits, 1, False, out=logs)
            aten.nll_loss_forward.output(logs, wide, None, mean, ignored, output=loss[0], total_weight=total)
            loss.mul_(weight)
            aten.nll_loss_backward.grad_input(weight, logs, wide, None, mean, ignored, total, grad_input=dlogs)
            aten._log_softmax_backward_data.out(dlogs, logs, 1, logits.dtype, out=dlogits)

    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
