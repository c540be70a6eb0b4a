"""attention_backward: the gradient of attention, from its output and the statistics of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, AttentionGeometry, from_storage, to_storage


@dataclass(frozen=True, kw_only=True)
class AttentionBackward(AttentionGeometry):
    """dv[j] = sum over i of p[i,j] dout[i], ds = p (dp - delta), dq = ds k / sqrt(depth), dk = ds^T q / sqrt(depth).

    p[i,j] = exp(q[i] . k[j] / sqrt(depth) - logsumexp[i]), 0 where masked; dp[i,j] = dout[i] . v[j]; and
    delta[i] = dout[i] . out[i]. A key head that several query heads share has the sums over them. Masks, layouts and
    shared heads are those of attention: with layout "qkv" one output has the gradients of queries, keys and values of
    each token. `dtype` stores all tensors but logsumexp, which is float32.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    mask: str = "none"
    dtype: str = "f32"
    layout: str = "heads"

    choices = {"mask": ("none", "causal"), "dtype": ("f32", "bf16"), "layout": ("heads", "tokens", "qkv")}
    integers_exact = False  # exponentials are not whole
    special_inputs = {"dout": ("zeros", "level")}
    linear_in = ("dout",)
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the physical axes of what attention read and wrote, and of the gradient of its output."""
        out = self.output_axes()
        return {**self.operand_axes(), "out": out, "logsumexp": "batch heads queries", "dout": out}

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the physical axes of the gradients: those of queries, keys and values, or of the packed array."""
        return {f"d{name}": axes for name, axes in self.operand_axes().items()}

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for the statistics."""
        return "f32" if name == "logsumexp" else self.dtype

    def flops(self) -> int:
        """Return the FLOPs of the five matrix products over the pairs of query and key that are not masked."""
        return 10 * self.batch * self.heads * self.pairs * self.depth

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: those of a score and those of a gradient."""
        return max(self.keys, self.queries * self.heads // self.kv_heads) + self.depth

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals, and for the output and the statistics what attention computes from them."""
        arrays = super().make_inputs(seed, integers)
        wide = {name: from_storage(array, self.tensor_dtype(name)) for name, array in arrays.items()}
        self.write_attention(wide, wide["out"], arrays["logsumexp"])
        arrays["out"] = to_storage(wide["out"], self.dtype)
        return arrays

    def reference(self, **inputs: np.ndarray) -> Arrays:
        """Compute head by head the formulas as they stand."""
        (q, k, v), (dq, dk, dv), stored = self._operands_and_gradients(inputs)
        dout, out = self.output_by_heads(inputs["dout"]), self.output_by_heads(inputs["out"])
        for b, h, g in self.heads_and_keys():
            p = np.exp(self.scores(q[b, h], k[b, g]) - inputs["logsumexp"][b, h][:, None])
            delta = (dout[b, h] * out[b, h]).sum(axis=1, keepdims=True)
            ds = p * (dout[b, h] @ v[b, g].T - delta) / np.sqrt(self.depth)
            dq[b, h] = ds @ k[b, g]
            dk[b, g] += ds.T @ q[b, h]
            dv[b, g] += p.T @ dout[b, h]
        return stored

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of all terms, each weight with the error that its exponent allows."""
        wide = self.widened(inputs)
        (q, k, v), (dq, dk, dv), stored = self._operands_and_gradients(wide)
        dout, out = self.output_by_heads(wide["dout"]), self.output_by_heads(wide["out"])
        for b, h, g in self.heads_and_keys():
            statistics = wide["logsumexp"][b, h][:, None]
            p = np.exp(self.scores(q[b, h], k[b, g]) - statistics)
            exponent = np.abs(q[b, h]) @ np.abs(k[b, g]).T / np.sqrt(self.depth) + np.abs(statistics)
            p = p * (1 + exponent)
            delta = np.abs(dout[b, h] * out[b, h]).sum(axis=1, keepdims=True)
            ds = p * (np.abs(dout[b, h]) @ np.abs(v[b, g]).T + delta) / np.sqrt(self.depth)
            dq[b, h] = ds @ np.abs(k[b, g])
            dk[b, g] += ds.T @ np.abs(q[b, h])
            dv[b, g] += p.T @ np.abs(dout[b, h])
        return stored

    def _operands_and_gradients(
        self, inputs: Mapping[str, np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray], Arrays]:
        """Return q, k and v, and views of zeros for their gradients, with axes batch, head, token, depth."""
        names = tuple(self.operand_axes())
        stored = {f"d{name}": np.zeros_like(inputs[name]) for name in names}
        return self.by_heads(inputs), self.by_heads({name: stored[f"d{name}"] for name in names}), stored

    @classmethod
    def examples(cls) -> Sequence[AttentionBackward]:
        """One query and many, full tiles and parts of tiles, shared heads, every mask, depth, dtype and layout."""
        causal, bf16, tokens, qkv = {"mask": "causal"}, {"dtype": "bf16"}, {"layout": "tokens"}, {"layout": "qkv"}
        return [
            cls(batch=1, heads=1, kv_heads=1, queries=1, keys=1, depth=1),
            cls(batch=2, heads=3, kv_heads=1, queries=5, keys=7, depth=10),
            cls(batch=1, heads=2, kv_heads=2, queries=33, keys=33, depth=16, **causal),
            cls(batch=1, heads=2, kv_heads=1, queries=3, keys=70, depth=32, **causal),
            cls(batch=1, heads=1, kv_heads=1, queries=70, keys=65, depth=64),
            cls(batch=1, heads=1, kv_heads=1, queries=34, keys=66, depth=128, **causal),
            cls(batch=1, heads=2, kv_heads=1, queries=9, keys=12, depth=24, **bf16),
            cls(batch=1, heads=2, kv_heads=1, queries=130, keys=70, depth=64, **bf16),
            cls(batch=2, heads=2, kv_heads=2, queries=64, keys=64, depth=64, **causal, **bf16),
            cls(batch=1, heads=1, kv_heads=1, queries=67, keys=140, depth=128, **causal, **bf16),
            cls(batch=2, heads=4, kv_heads=2, queries=5, keys=7, depth=10, **tokens),
            cls(batch=1, heads=3, kv_heads=3, queries=33, keys=40, depth=64, **causal, **tokens),
            cls(batch=2, heads=4, kv_heads=2, queries=9, keys=130, depth=64, **bf16, **tokens),
            cls(batch=1, heads=3, kv_heads=1, queries=66, keys=140, depth=64, **causal, **bf16, **tokens),
            cls(batch=1, heads=2, kv_heads=1, queries=70, keys=33, depth=128, **bf16, **tokens),
            cls(batch=2, heads=3, kv_heads=3, queries=5, keys=5, depth=10, **qkv),
            cls(batch=1, heads=2, kv_heads=2, queries=67, keys=67, depth=64, **causal, **qkv),
            cls(batch=2, heads=2, kv_heads=2, queries=67, keys=67, depth=64, **bf16, **qkv),
            cls(batch=1, heads=3, kv_heads=3, queries=130, keys=130, depth=64, **causal, **bf16, **qkv),
            cls(batch=1, heads=1, kv_heads=1, queries=70, keys=70, depth=128, **causal, **bf16, **qkv),
        ]
