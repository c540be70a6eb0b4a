"""Definitions in the schema of FlashInfer-Bench, as JSON objects, and naive kernels for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADER = """// /// opbench
// launch = [{{ kernel = "k", grid = ["cdiv({threads}, 64)"], block = ["64"] }}]
// ///
#include <cuda_bf16.h>
extern "C" __global__ void k({parameters}) {{
    const int i = blockIdx.x * 64 + threadIdx.x;
{body}
}}
"""

DECODE_REFERENCE = """import math
import torch

@torch.no_grad()
def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
    batch_size, num_qo_heads, head_dim = q.shape
    num_pages, page_size, num_kv_heads, _ = k_cache.shape
    assert (num_qo_heads, num_kv_heads, head_dim, page_size) == (4, 2, 8, 4)
    assert kv_indptr.shape[0] == batch_size + 1 and kv_indices.shape[0] == kv_indptr[-1].item()
    output = torch.zeros((batch_size, num_qo_heads, head_dim), dtype=torch.bfloat16)
    lse = torch.full((batch_size, num_qo_heads), -float("inf"), dtype=torch.float32)
    for sequence in range(batch_size):
        begin, end = int(kv_indptr[sequence].item()), int(kv_indptr[sequence + 1].item())
        if begin == end:
            continue
        pages = kv_indices[begin:end].to(torch.long)
        tokens = (end - begin - 1) * page_size + int(kv_last_page_len[sequence].item())
        share = num_qo_heads // num_kv_heads
        keys = k_cache[pages].flatten(0, 1)[:tokens].float().repeat_interleave(share, 1)
        values = v_cache[pages].flatten(0, 1)[:tokens].float().repeat_interleave(share, 1)
        scores = torch.einsum("hd,thd->ht", q[sequence].float(), keys) * sm_scale
        lse[sequence] = torch.logsumexp(scores, 1) / math.log(2)
        output[sequence] = torch.einsum("ht,thd->hd", torch.softmax(scores, 1), values).to(torch.bfloat16)
    return output, lse
"""
DECODE: dict[str, Any] = {
    "name": "gqa_paged_decode_h4_kv2_d8_ps4",
    "op_type": "gqa_paged",
    "tags": ["stage:decode"],
    "axes": {
        "batch_size": {"type": "var", "description": "Number of sequences."},
        "num_qo_heads": {"type": "const", "value": 4},
        "num_kv_heads": {"type": "const", "value": 2},
        "head_dim": {"type": "const", "value": 8},
        "page_size": {"type": "const", "value": 4},
        "num_pages": {"type": "var"},
        "len_indptr": {"type": "var"},
        "num_kv_indices": {"type": "var"},
    },
    "constraints": ["len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"],
    "inputs": {
        "q": {"shape": ["batch_size", "num_qo_heads", "head_dim"], "dtype": "bfloat16"},
        "k_cache": {"shape": ["num_pages", "page_size", "num_kv_heads", "head_dim"], "dtype": "bfloat16"},
        "v_cache": {"shape": ["num_pages", "page_size", "num_kv_heads", "head_dim"], "dtype": "bfloat16"},
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "kv_indices": {"shape": ["num_kv_indices"], "dtype": "int32"},
        "kv_last_page_len": {"shape": ["batch_size"], "dtype": "int32"},
        "sm_scale": {"shape": None, "dtype": "float32", "description": "Softmax scale. Default is (1/sqrt(head_dim))."},
    },
    "outputs": {
        "output": {"shape": ["batch_size", "num_qo_heads", "head_dim"], "dtype": "bfloat16"},
        "lse": {"shape": ["batch_size", "num_qo_heads"], "dtype": "float32"},
    },
    "reference": DECODE_REFERENCE,
}
DECODE_KERNEL = HEADER.format(
    threads="batch_size * 4",
    parameters="const __nv_bfloat16* q, const __nv_bfloat16* k_cache, const __nv_bfloat16* v_cache, const int* indptr, "
    "const int* indices, const int* last, __nv_bfloat16* out, float* lse, int batch_size, int num_pages, int entries",
    body="""    if (i >= batch_size * 4) return;
    const int sequence = i / 4, group = i % 4 / 2, begin = indptr[sequence], pages = indptr[sequence + 1] - begin;
    const int tokens = pages ? (pages - 1) * 4 + last[sequence] : 0;
    float top = -INFINITY, sum = 0.0f, total[8] = {};
    for (int token = 0; token < tokens; ++token) {
        const int row = ((indices[begin + token / 4] * 4 + token % 4) * 2 + group) * 8;
        float score = 0.0f;
        for (int d = 0; d < 8; ++d) score += __bfloat162float(q[i * 8 + d]) * __bfloat162float(k_cache[row + d]);
        score *= 0.35355339f;
        const float next = fmaxf(top, score), old = expf(top - next), weight = expf(score - next);
        for (int d = 0; d < 8; ++d) total[d] = total[d] * old + weight * __bfloat162float(v_cache[row + d]);
        sum = sum * old + weight;
        top = next;
    }
    for (int d = 0; d < 8; ++d) out[i * 8 + d] = __float2bfloat16(tokens ? total[d] / sum : 0.0f);
    lse[i] = tokens ? (top + logf(sum)) * 1.44269504f : -INFINITY;""",
)

RAGGED_REFERENCE = """import math
import torch

@torch.no_grad()
def run(q, k, v, qo_indptr, kv_indptr, sm_scale):
    assert q.shape[1:] == (2, 8) and k.shape[1:] == (1, 8)
    assert q.shape[0] == qo_indptr[-1].item() and k.shape[0] == kv_indptr[-1].item()
    output = torch.zeros(q.shape, dtype=torch.bfloat16)
    for sequence in range(len(qo_indptr) - 1):
        first, after = int(qo_indptr[sequence].item()), int(qo_indptr[sequence + 1].item())
        begin, end = int(kv_indptr[sequence].item()), int(kv_indptr[sequence + 1].item())
        if first == after:
            continue
        scores = torch.einsum("qhd,kd->hqk", q[first:after].float(), k[begin:end, 0].float()) * sm_scale
        allowed = torch.ones(after - first, end - begin, dtype=torch.bool).tril(end - begin - after + first)
        weights = torch.softmax(scores.masked_fill(~allowed, -float("inf")), -1)
        output[first:after] = torch.einsum("hqk,kd->qhd", weights, v[begin:end, 0].float()).to(torch.bfloat16)
    return output
"""
RAGGED: dict[str, Any] = {
    "name": "gqa_ragged_prefill_causal_h2_kv1_d8",
    "op_type": "gqa_ragged",
    "axes": {
        "num_qo_heads": {"type": "const", "value": 2},
        "num_kv_heads": {"type": "const", "value": 1},
        "head_dim": {"type": "const", "value": 8},
        "len_indptr": {"type": "var"},
        "total_q": {"type": "var"},
        "total_kv": {"type": "var"},
    },
    "constraints": ["total_q == qo_indptr[-1].item()", "total_kv == kv_indptr[-1].item()"],
    "inputs": {
        "q": {"shape": ["total_q", "num_qo_heads", "head_dim"], "dtype": "bfloat16"},
        "k": {"shape": ["total_kv", "num_kv_heads", "head_dim"], "dtype": "bfloat16"},
        "v": {"shape": ["total_kv", "num_kv_heads", "head_dim"], "dtype": "bfloat16"},
        "qo_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "sm_scale": {"shape": None, "dtype": "float32", "description": "Default is (1/sqrt(head_dim))."},
    },
    "outputs": {"output": {"shape": ["total_q", "num_qo_heads", "head_dim"], "dtype": "bfloat16"}},
    "reference": RAGGED_REFERENCE,
}

ROPE_REFERENCE = """import torch

@torch.no_grad()
def run(q, cos_sin_cache, positions):
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, -1)
    low, high, rest = q.to(torch.float32).split([4, 4, 4], -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], -1).to(q.dtype)
"""
ROPE: dict[str, Any] = {
    "name": "rope_with_cos_sin_cache_neox_style_d12_rd8",
    "op_type": "rope",
    "axes": {
        "num_tokens": {"type": "var"},
        "num_qo_heads": {"type": "var"},
        "head_size": {"type": "const", "value": 12},
        "rotary_dim": {"type": "const", "value": 8},
        "max_seq_len": {"type": "var"},
    },
    "constraints": [],
    "inputs": {
        "q": {"shape": ["num_tokens", "num_qo_heads", "head_size"], "dtype": "bfloat16"},
        "cos_sin_cache": {"shape": ["max_seq_len", "rotary_dim"], "dtype": "float32"},
        "positions": {"shape": ["num_tokens"], "dtype": "int64", "description": "Index into cos_sin_cache."},
    },
    "outputs": {"q_out": {"shape": ["num_tokens", "num_qo_heads", "head_size"], "dtype": "bfloat16"}},
    "reference": ROPE_REFERENCE,
}
ROPE_KERNEL = HEADER.format(
    threads="out_size",
    parameters="const __nv_bfloat16* q, const float* cache, const int* positions, __nv_bfloat16* out, int num_tokens, "
    "int num_qo_heads, int max_seq_len",
    body="""    if (i >= num_tokens * num_qo_heads * 12) return;
    const float* row = cache + positions[i / 12 / num_qo_heads] * 8;
    const int d = i % 12, head = i - d;
    const float low = __bfloat162float(q[head + d % 4]), high = __bfloat162float(q[head + d % 4 + 4]);
    const float cosine = row[d % 4], sine = row[d % 4 + 4];
    const float turned = d < 4 ? low * cosine - high * sine : high * cosine + low * sine;
    out[i] = __float2bfloat16(d < 8 ? turned : __bfloat162float(q[i]));""",
)

SPARSE: dict[str, Any] = {
    "name": "sparse_sum_topk6_ps4",
    "op_type": "dsa_paged",
    "axes": {
        "num_tokens": {"type": "var"},
        "topk": {"type": "const", "value": 6},
        "page_size": {"type": "const", "value": 4},
        "num_pages": {"type": "var"},
    },
    "constraints": ["sparse_indices.shape[-1] == topk"],
    "inputs": {
        "cache": {"shape": ["num_pages", "page_size"], "dtype": "float32"},
        "sparse_indices": {"shape": ["num_tokens", "topk"], "dtype": "int32"},
    },
    "outputs": {"output": {"shape": ["num_tokens"], "dtype": "float32"}},
    "reference": """import torch

def run(cache, sparse_indices):
    values = cache.reshape(-1)
    return torch.stack([values[row[row != -1].to(torch.long)].sum() for row in sparse_indices])
""",
}


def write_definition(definition: dict[str, Any], folder: Path, **changes: Any) -> Path:
    """Write a definition with other values for some keys into a new folder; return the folder."""
    folder.mkdir(exist_ok=True)
    changed = {**definition, **changes}
    (folder / f"{changed['name']}.json").write_text(json.dumps(changed), encoding="utf-8")
    return folder
