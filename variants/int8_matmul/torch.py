"""cuBLAS's product of whole numbers of 8 bits through PyTorch.

/// opbench
title     = "torch._int_mm: cuBLAS with 32-bit integer sums"
modules   = ["cupy", "torch"]
requires  = ["m > 16 and n % 8 == 0 and k % 8 == 0"]
compute_capability = "7.5"
///

b is passed as a transposed view, which is the order that cuBLAS multiplies fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues out = a @ b.T."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, out = tensors["a"], tensors["b"].t(), tensors["out"]
    launch = torch_launch(lambda: torch._int_mm(a, b, out=out))
    launch()  # loads cuBLAS and its workspace outside of any capture
    return launch
