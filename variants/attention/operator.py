"""attention: for each query, the values averaged by the softmax of its scores with the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, AttentionGeometry, Gradient, UsageError


@dataclass(frozen=True, kw_only=True)
class Attention(AttentionGeometry):
    """out[b,h,i] = sum over j of p[b,h,i,j] * v[b,g,j], p = softmax over j of q[b,h,i] . k[b,g,j] / sqrt(depth).

    g = h * kv_heads / heads: several query heads share a key head (grouped queries). With mask "causal", query i sees
    the keys j <= i + keys - queries: the last query sees all. `dtype` stores all tensors.

    `layout` orders them in memory: "heads" stores all tokens of a head together, "tokens" all heads of a token, as a
    linear layer does. With "qkv" one input has the queries, then the keys, then the values of each token: the output of
    one linear layer. With statistics "logsumexp", the logarithm of each row's sum of exponentials is an output too, in
    float32: the gradient needs it.
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
    statistics: str = "none"

    choices = {
        "mask": ("none", "causal"),
        "dtype": ("f32", "bf16"),
        "layout": ("heads", "tokens", "qkv"),
        "statistics": ("none", "logsumexp"),
    }
    integers_exact = False  # exponentials are not whole
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the physical axes of queries, keys and values, or of the packed array."""
        return self.operand_axes()

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the physical axes of the averages, and of the statistics."""
        statistics = {"logsumexp": "batch heads queries"} if self.statistics == "logsumexp" else {}
        return {"out": self.output_axes()} | statistics

    @property
    def special_inputs(self) -> Mapping[str, Sequence[str]]:
        """Return tiny numbers only for queries: averages of tiny values would be rounded as subnormal numbers are."""
        if self.layout == "qkv":
            return {"qkv": ("zeros", "level")}
        return {"q": ("zeros", "level", "tiny"), "v": ("level",)}

    @property
    def linear_in(self) -> Sequence[str]:
        """The values, where they are an input of their own."""
        return () if self.layout == "qkv" else ("v",)

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for the statistics."""
        return "f32" if name == "logsumexp" else self.dtype

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """Return one attention_backward for all inputs: each gradient needs the weights, computed from statistics."""
        if not wanted:
            return []
        if self.statistics == "none":
            raise UsageError(
                f"attention{self}: statistics=none has no gradient, because the backward pass needs the stored "
                "logsumexp; use statistics=logsumexp",
                kind="no-gradient",
                subject=self.name,
                value=self.statistics,
                allowed="logsumexp",
            )
        axes = {name: value for name, value in self.axes.items() if name != "statistics"}
        tensors = {name: name for name in (*self.inputs, "out", "logsumexp")} | {"dout": "d.out"}
        given = {f"d{name}": f"d.{name}" for name in self.inputs}
        return [Gradient("attention_backward", axes, tensors, given)]

    def flops(self) -> int:
        """Return the FLOPs of both matrix products over the pairs of query and key that are not masked."""
        return 4 * self.batch * self.heads * self.pairs * self.depth

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: the products of a score and those of an output."""
        return self.keys + self.depth

    def reference(self, **inputs: np.ndarray) -> Arrays:
        """Compute head by head, with the maximum of each row subtracted."""
        (q, k, v), (out, stored) = self.by_heads(inputs), self._new_output(inputs)
        logsumexp = np.empty_like(q, shape=(self.batch, self.heads, self.queries))
        for b, h, g in self.heads_and_keys():
            scores = self.scores(q[b, h], k[b, g])
            maximum = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - maximum)
            sums = weights.sum(axis=1, keepdims=True)
            out[b, h] = (weights / sums) @ v[b, g]
            logsumexp[b, h] = (maximum + np.log(sums))[:, 0]
        return {"out": stored} | ({"logsumexp": logsumexp} if self.statistics == "logsumexp" else {})

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the average of the absolute values, each with the error that its exponent's terms allow.

        The statistics are float32 for every `dtype`: of what rounding to bf16 allows, they have the share of float32.
        """
        wide = self.widened(inputs)
        (q, k, v), (out, stored) = self.by_heads(wide), self._new_output(wide)
        statistics = np.empty_like(q, shape=(self.batch, self.heads, self.queries))
        share = 8 * 2.0**-24 * self.reduction() ** 0.5 / self.tolerance("f32").elementwise
        for b, h, g in self.heads_and_keys():
            weights = self._probabilities(q[b, h], k[b, g])
            exponent = np.abs(q[b, h]) @ np.abs(k[b, g]).T / np.sqrt(self.depth)
            exponent += exponent.max(axis=1, keepdims=True)  # the maximum is subtracted
            size, moved = np.abs(v[b, g]), weights * exponent
            out[b, h] = (weights + moved) @ size + moved.sum(axis=1, keepdims=True) * (weights @ size)
            statistics[b, h] = 1 + np.log(self.keys) + exponent.max(axis=1)
        return {"out": stored} | ({"logsumexp": statistics * share} if self.statistics == "logsumexp" else {})

    def _new_output(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the output's memory with axes batch, head, query, depth, and as it is stored."""
        stored = np.empty_like(inputs["qkv"][:, :, 0] if self.layout == "qkv" else inputs["q"])
        return self.output_by_heads(stored), stored

    def _probabilities(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        scores = self.scores(q, k)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @classmethod
    def examples(cls) -> Sequence[Attention]:
        """One query and many, full tiles and parts of tiles, shared heads, every mask, depth, dtype and layout."""
        causal, bf16, tokens, qkv = {"mask": "causal"}, {"dtype": "bf16"}, {"layout": "tokens"}, {"layout": "qkv"}
        small = [
            cls(batch=1, heads=1, kv_heads=1, queries=1, keys=1, depth=1),
            cls(batch=2, heads=3, kv_heads=1, queries=5, keys=7, depth=10),
            cls(batch=1, heads=2, kv_heads=2, queries=33, keys=33, depth=16, **causal),
            cls(batch=1, heads=2, kv_heads=1, queries=3, keys=70, depth=32, **causal),
            cls(batch=1, heads=1, kv_heads=1, queries=70, keys=65, depth=64),
            cls(batch=1, heads=1, kv_heads=1, queries=65, keys=130, depth=128, **causal),
            cls(batch=1, heads=2, kv_heads=1, queries=9, keys=12, depth=24, **bf16),
            cls(batch=1, heads=2, kv_heads=1, queries=130, keys=70, depth=64, **bf16),
            cls(batch=2, heads=2, kv_heads=2, queries=64, keys=64, depth=64, **causal, **bf16),
            cls(batch=1, heads=1, kv_heads=1, queries=140, keys=300, depth=128, **causal, **bf16),
            cls(batch=1, heads=2, kv_heads=1, queries=33, keys=270, depth=128, **bf16),
        ]
        small += [
            cls(batch=2, heads=3, kv_heads=1, queries=5, keys=7, depth=10, **tokens),
            cls(batch=2, heads=2, kv_heads=1, queries=35, keys=66, depth=64, **tokens),
            cls(batch=1, heads=3, kv_heads=3, queries=33, keys=40, depth=64, **causal, **tokens),
            cls(batch=1, heads=2, kv_heads=1, queries=7, keys=66, depth=128, **tokens),
            cls(batch=1, heads=2, kv_heads=2, queries=33, keys=35, depth=128, **causal, **tokens),
            cls(batch=2, heads=4, kv_heads=2, queries=9, keys=130, depth=64, **bf16, **tokens),
            cls(batch=1, heads=3, kv_heads=1, queries=131, keys=140, depth=64, **causal, **bf16, **tokens),
            cls(batch=1, heads=2, kv_heads=1, queries=130, keys=33, depth=128, **bf16, **tokens),
            cls(batch=1, heads=2, kv_heads=1, queries=64, keys=128, depth=128, **causal, **bf16, **tokens),
            cls(batch=2, heads=3, kv_heads=3, queries=5, keys=5, depth=10, **qkv),
            cls(batch=2, heads=2, kv_heads=2, queries=67, keys=67, depth=64, **causal, **qkv),
            cls(batch=2, heads=2, kv_heads=2, queries=67, keys=67, depth=64, **bf16, **qkv),
            cls(batch=1, heads=3, kv_heads=3, queries=130, keys=130, depth=64, **causal, **bf16, **qkv),
            cls(batch=1, heads=2, kv_heads=2, queries=35, keys=35, depth=128, **bf16, **qkv),
            cls(batch=1, heads=2, kv_heads=2, queries=130, keys=130, depth=128, **causal, **bf16, **qkv),
        ]
        stored = {"statistics": "logsumexp"}
        small += [
            cls(batch=1, heads=1, kv_heads=1, queries=1, keys=1, depth=1, **stored),
            cls(batch=2, heads=3, kv_heads=1, queries=5, keys=7, depth=10, **stored),
            cls(batch=1, heads=4, kv_heads=2, queries=9, keys=19, depth=24, **causal, **tokens, **stored),
            cls(batch=2, heads=2, kv_heads=2, queries=35, keys=35, depth=64, **causal, **qkv, **stored),
            cls(batch=2, heads=2, kv_heads=1, queries=70, keys=140, depth=64, **bf16, **stored),
            cls(batch=1, heads=3, kv_heads=3, queries=130, keys=130, depth=64, **causal, **bf16, **qkv, **stored),
            cls(batch=1, heads=2, kv_heads=1, queries=33, keys=70, depth=128, **causal, **bf16, **tokens, **stored),
        ]
        return small
