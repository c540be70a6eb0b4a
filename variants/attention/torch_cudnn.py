"""Attention by cuDNN, called by PyTorch.

/// opbench
title    = "torch scaled_dot_product_attention, with cuDNN"
modules  = ["cupy", "torch"]
supports = { mask = ["none", "causal"], dtype = ["bf16"], layout = ["heads", "tokens", "qkv"] }
requires = ["mask == 'none' or queries == keys", "depth % 8 == 0"]
///

PyTorch's causal mask is aligned with the first key, so it is the operator's only for as many queries as keys. The
function returns a new tensor; its copy into the output is not timed, as PyTorch would not make it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    tensors = torch_tensors(problem, buffers)
    q, k, v = tensors["qkv"].unbind(2) if problem.layout == "qkv" else (tensors[name] for name in ("q", "k", "v"))
    out = tensors["out"]
    if problem.layout != "heads":  # PyTorch wants heads before tokens: views with other strides
        q, k, v, out = (tensor.transpose(1, 2) for tensor in (q, k, v, out))

    def run() -> Sequence[Any]:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            shared = problem.heads != problem.kv_heads
            result = scaled_dot_product_attention(q, k, v, is_causal=problem.mask == "causal", enable_gqa=shared)
            return [result]

    return torch_launch(run, [out])
