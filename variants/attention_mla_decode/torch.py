"""Latent attention of one query per sequence over paged caches by PyTorch.

/// opbench
title    = "gathers the pages, then two torch products with a softmax in between"
modules  = ["cupy", "torch"]
supports = { ragged = ["no", "yes"], dtype = ["bf16", "f32"] }
///

PyTorch has no attention with a page table, so the call first copies all pages into one contiguous tensor of keys, also
those beyond a sequence's length. The heads of a sequence are the rows of one matrix, so the products read a token once
for all heads. The scores take their softmax in float32. If lengths are ragged, a mask excludes the tokens beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbench import torch_launch, torch_tensors


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into buffers["out"]."""
    import torch

    tensors = torch_tensors(problem, buffers)
    scale, table = problem.key_depth**-0.5, tensors["page_table"].view(-1)
    capacity = torch.arange(problem.pages_per_sequence * problem.page_size, device=table.device)

    def gathered(cache: Any) -> Any:
        return torch.index_select(cache, 0, table).view(problem.sequences, -1, cache.shape[-1])

    def run() -> Sequence[Any]:
        values = gathered(tensors["ckv"])
        keys = torch.cat((values, gathered(tensors["kpe"])), dim=2)
        queries = torch.cat((tensors["q_nope"], tensors["q_pe"]), dim=2)
        scores = torch.bmm(queries, keys.transpose(1, 2)).float() * scale
        beyond = (capacity >= tensors["lengths"][:, None])[:, None]
        weights = scores.masked_fill(beyond, float("-inf")).softmax(dim=2)
        return [torch.bmm(weights.to(values.dtype), values)]

    return torch_launch(run, [tensors["out"]])
