"""The gradient of attention by PyTorch.

/// opbench
title    = "backward of torch scaled_dot_product_attention: flash attention in bf16, memory-efficient in f32"
modules  = ["cupy", "torch"]
supports = { mask = ["none", "causal"], dtype = ["f32", "bf16"], layout = ["heads", "tokens", "qkv"] }
requires = ["mask == 'none' or queries == keys", "heads == kv_heads", "depth % 8 == 0"]
///

The backward pass reads the problem's output and statistics; a forward pass before it, untimed, is only asked for the
state of the random numbers. The causal mask is aligned with the first key, so it is the operator's only for as many
queries as keys. The function returns new tensors; their copies into the outputs are not timed, as PyTorch would not
make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import torch

    aten, causal = torch.ops.aten, problem.mask == "causal"
    tensors = torch_tensors(problem, buffers)
    if problem.layout == "qkv":
        operands, outputs = tensors["qkv"].unbind(2), tensors["dqkv"].unbind(2)
    else:
        operands, outputs = ([tensors[name] for name in names] for names in (("q", "k", "v"), ("dq", "dk", "dv")))
    out, dout, statistics = tensors["out"], tensors["dout"], tensors["logsumexp"]
    if problem.layout != "heads":  # PyTorch wants heads before tokens: views with other strides
        operands, outputs = ([tensor.transpose(1, 2) for tensor in group] for group in (operands, outputs))
        out, dout = out.transpose(1, 2), dout.transpose(1, 2)
    q, k, v = operands
    if q.device.type == "cpu":

        def run() -> Sequence[Any]:
            gradients: Sequence[Any] = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                dout, q, k, v, out, statistics, 0.0, causal
            )
            return gradients

    elif problem.dtype == "bf16":
        saved = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        query_ends, key_ends, queries, keys, seed, offset = saved[2:8]

        def run() -> Sequence[Any]:
            gradients: Sequence[Any] = aten._scaled_dot_product_flash_attention_backward(
                dout, q, k, v, out, statistics, query_ends, key_ends, queries, keys, 0.0, causal, seed, offset
            )
            return gradients

    else:
        *_, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
        wanted, short = [True, True, True, False], -problem.queries % 32

        def run() -> Sequence[Any]:
            # PyTorch's own statistics have a multiple of 32 queries.
            padded = torch.nn.functional.pad(statistics, (0, short)) if short else statistics
            gradients: Sequence[Any] = aten._scaled_dot_product_efficient_attention_backward(
                dout, q, k, v, None, out, padded, seed, offset, 0.0, wanted, causal
            )
            return gradients[:3]

    return torch_launch(run, list(outputs))
