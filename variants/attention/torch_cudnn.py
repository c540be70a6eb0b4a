"""Attention by cuDNN, called by PyTorch.

/// opbench
title    = "scaled_dot_product_attention by cuDNN"
modules  = ["cupy", "torch"]
supports = { mask = ["none", "causal"], dtype = ["bf16"] }
requires = ["mask == 'none' or queries == keys", "depth % 8 == 0"]
///

PyTorch's causal mask is aligned with the first key, so it is the operator's only for as many queries as keys. The
function returns a new tensor; its copy into the output is not timed, as PyTorch would not make it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import cupy
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v, out = (_tensor(buffers[name], problem.dtype) for name in ("q", "k", "v", "out"))

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            shared = problem.heads != problem.kv_heads
            found = scaled_dot_product_attention(q, k, v, is_causal=problem.mask == "causal", enable_gqa=shared)
            returned[:] = [found]

    def collect() -> None:
        with torch.no_grad(), on_stream():
            out.copy_(returned[0])

    run.collect = collect  # type: ignore[attr-defined]
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
