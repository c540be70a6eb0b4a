"""CUTLASS's grouped product through PyTorch.

/// opbench
title     = "torch._grouped_mm: one CUTLASS kernel for all groups"
precision = "bf16"
modules   = ["cupy", "torch"]
requires  = ["k % 8 == 0 and n % 8 == 0"]
compute_capability = "9.0"
///

PyTorch returns a new tensor; the copy into the output is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the products; the groups' matrices are passed as transposed views."""
    import torch

    tensors = torch_tensors(problem, buffers)
    a, b, ends = tensors["a"], tensors["b"].transpose(1, 2), tensors["ends"]
    launch = torch_launch(lambda: (torch._grouped_mm(a, b, offs=ends, out_dtype=torch.bfloat16),), [tensors["out"]])
    launch()  # compiles and loads the kernel outside of any capture
    return launch
