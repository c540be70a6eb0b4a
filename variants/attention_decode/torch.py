"""Attention of one query per sequence over paged caches by PyTorch.

/// opbench
title    = "gathers the pages, then torch scaled_dot_product_attention"
modules  = ["cupy", "torch"]
supports = { ragged = ["no", "yes"], dtype = ["f32", "bf16"] }
///

PyTorch's attention has no page table, so the call first copies all pages into contiguous tensors, also those beyond a
sequence's length. This moves about three times the bytes that the operator needs. If lengths are ragged, a mask
excludes the tokens beyond them, and the query heads of a group become the queries of one head, because PyTorch has no
fast kernel for shared key heads with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    tensors = torch_tensors(problem, buffers)
    sequences, kv_heads, depth = problem.sequences, problem.kv_heads, problem.depth
    queries = tensors["q"].view(sequences, problem.heads, 1, depth)
    capacity = torch.arange(problem.pages_per_sequence * problem.page_size, device=queries.device)

    def gathered(cache: Any) -> Any:
        pages = torch.index_select(cache, 0, tensors["page_table"].view(-1))
        return pages.view(sequences, -1, kv_heads, depth).transpose(1, 2)

    def run() -> Sequence[Any]:
        k, v = gathered(tensors["k"]), gathered(tensors["v"])
        if problem.ragged == "no":
            k, v = k[:, :, : problem.keys], v[:, :, : problem.keys]
            out = scaled_dot_product_attention(queries, k, v, enable_gqa=problem.group > 1)
        else:
            mask = (capacity < tensors["lengths"][:, None])[:, None, None]
            grouped = queries.view(sequences, kv_heads, problem.group, depth)
            out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
        return [out.reshape(sequences, problem.heads, depth)]

    return torch_launch(run, [tensors["out"]])
