"""The largest elements by PyTorch.

/// opbench
title   = "torch.topk along the row, largest first"
modules = ["cupy", "torch"]

[supports]
dtype = ["f32", "bf16"]
///

PyTorch selects any of equal elements, in any order. After each call, outside of the timed interval, `collect` checks
that the indices are distinct and point to the values. Among equal elements it then puts the indices in the operator's
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream; `collect` fills the outputs."""
    import torch

    tensors = torch_tensors(problem, buffers)
    x, values, indices = tensors["x"], tensors["values"], tensors["indices"]

    def order_ties() -> None:
        chosen = indices.long()
        distinct = bool((chosen.sort(1).values.diff(dim=1) > 0).all())
        if not distinct or not torch.equal(bits_of(x.gather(1, chosen)), bits_of(values)):
            return  # wrong results stay as they are
        last = values[:, -1:]
        same = (x == last) | (x.isnan() & last.isnan())
        among = (values == last) | (values.isnan() & last.isnan())
        ties = (values[:, 1:] == values[:, :-1]) | values[:, 1:].isnan()
        if bool(ties.any()) or not torch.equal(same.sum(1), among.sum(1)):
            ordered = torch.sort(x, dim=1, descending=True, stable=True)
            values.copy_(ordered.values[:, : problem.k])
            indices.copy_(ordered.indices[:, : problem.k])

    def bits_of(tensor: Any) -> Any:
        return tensor.view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)

    launch = torch_launch(lambda: torch.topk(x, problem.k, 1), [values, indices])
    copy, order = launch.collect, torch_launch(order_ties)  # type: ignore[attr-defined]

    def collect() -> None:
        copy()
        order()

    launch.collect = collect  # type: ignore[attr-defined]
    return launch
