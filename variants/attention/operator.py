"""attention: for each query, the values averaged by the softmax of its scores with the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, UsageError


@dataclass(frozen=True, kw_only=True)
class Attention(Operator):
    """out[b,h,i] = sum over j of p[b,h,i,j] * v[b,g,j], p = softmax over j of q[b,h,i] . k[b,g,j] / sqrt(depth).

    g = h * kv_heads / heads: several query heads share a key head (grouped queries). With mask "causal", query i sees
    the keys j <= i + keys - queries: the last query sees all. `dtype` stores all tensors.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    mask: str = "none"
    dtype: str = "f32"

    special_inputs = {"q": ("zeros", "level", "tiny"), "v": ("level",)}
    choices = {"mask": ("none", "causal"), "dtype": ("f32", "bf16")}
    inputs: ClassVar[Mapping[str, str]] = {
        "q": "batch heads queries depth",
        "k": "batch kv_heads keys depth",
        "v": "batch kv_heads keys depth",
    }
    outputs: ClassVar[Mapping[str, str]] = {"out": "batch heads queries depth"}
    linear_in = ("v",)
    integers_exact = False  # exponentials are not whole
    library = "torch"

    def validate(self) -> None:
        """Refuse heads that cannot share keys evenly, and a query before the first key."""
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UsageError(
                f"attention: heads={self.heads} is no multiple of kv_heads={self.kv_heads}; each serves as many"
            )
        if self.mask == "causal" and self.queries > self.keys:
            raise UsageError(
                f"attention: mask=causal with queries={self.queries} and keys={self.keys}: the first queries would see "
                "no key; at most as many queries as keys"
            )

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head."""
        if self.mask == "none":
            return self.queries * self.keys
        return self.queries * (self.keys - self.queries) + self.queries * (self.queries + 1) // 2

    def flops(self) -> int:
        """Return the FLOPs of both matrix products over the pairs of query and key that are not masked."""
        return 4 * self.batch * self.heads * self.pairs * self.depth

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: the products of a score and those of an output."""
        return self.keys + self.depth

    def reference(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Compute head by head, with the maximum of each row subtracted."""
        out = np.empty_like(q)
        for b, h, g in self._heads():
            out[b, h] = self._probabilities(q[b, h], k[b, g]) @ v[b, g]
        return out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the average of the absolute values, each with the error that its exponent's terms allow."""
        wide = self.widened(inputs)
        q, k, v = wide["q"], wide["k"], wide["v"]
        out = np.empty_like(q)
        for b, h, g in self._heads():
            weights = self._probabilities(q[b, h], k[b, g])
            exponent = np.abs(q[b, h]) @ np.abs(k[b, g]).T / np.sqrt(self.depth)
            exponent += exponent.max(axis=1, keepdims=True)  # the maximum is subtracted
            size, moved = np.abs(v[b, g]), weights * exponent
            out[b, h] = (weights + moved) @ size + moved.sum(axis=1, keepdims=True) * (weights @ size)
        return {"out": out}

    def _heads(self) -> list[tuple[int, int, int]]:
        share = self.heads // self.kv_heads
        return [(b, h, h // share) for b in range(self.batch) for h in range(self.heads)]

    def _probabilities(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        scores = q @ k.T / np.sqrt(self.depth)
        if self.mask == "causal":
            visible = np.tri(self.queries, self.keys, self.keys - self.queries, dtype=bool, like=scores)
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @classmethod
    def examples(cls) -> Sequence[Attention]:
        """One query and many, full tiles and parts of tiles, shared heads, every mask, depth and dtype."""
        causal, bf16 = {"mask": "causal"}, {"dtype": "bf16"}
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
        return small
