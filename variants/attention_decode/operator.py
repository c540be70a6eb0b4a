"""attention_decode: one new query per sequence attends over keys and values that are cached in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, PagedDecodeGeometry, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class AttentionDecode(PagedDecodeGeometry):
    """out[s,h] = sum over tokens j < lengths[s] of p[s,h,j] * v[s,j,g], p[s,h] = softmax of the scores over j.

    The score of token j is q[s,h] . k[s,j,g] / sqrt(depth), with g = h * kv_heads / heads: several query heads share a
    key head (grouped queries). The caches consist of pages of `page_size` tokens: token j of sequence s is row
    j % page_size of page page_table[s, j / page_size]. Pages lie in random order. All entries of the page table are
    valid, also those beyond a sequence's length; tokens beyond the length have no influence.

    `keys` is the capacity of a sequence in tokens. With ragged "no" every sequence has `keys` tokens. With "yes" the
    lengths grow in equal steps from 1 to `keys`, in random order; a single sequence has `keys`. `dtype` stores queries,
    caches and outputs; page table and lengths are int32.
    """

    sequences: int
    heads: int
    kv_heads: int
    keys: int
    depth: int
    page_size: int = 16
    ragged: str = "no"
    dtype: str = "f32"

    choices = {"ragged": ("no", "yes"), "dtype": ("f32", "bf16")}
    integers_exact = False  # exponentials are not whole
    library = "torch"
    special_inputs = {"q": ("zeros", "level", "tiny"), "v": ("level",)}
    inputs = {
        "q": "sequences heads depth",
        "k": "pages page_size kv_heads depth",
        "v": "pages page_size kv_heads depth",
        "page_table": "sequences pages_per_sequence",
        "lengths": "sequences",
    }
    outputs = {"out": "sequences heads depth"}

    def validate(self) -> None:
        """Refuse heads that cannot share keys evenly, and pages without tokens."""
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UsageError(
                f"attention_decode: heads={self.heads} is not allowed with kv_heads={self.kv_heads}; choose "
                "kv_heads >= 1, and heads as a multiple of kv_heads",
                kind="not-allowed",
                subject="heads",
                value=self.heads,
                allowed=f"multiple of {self.kv_heads}",
            )
        super().validate()

    @property
    def group(self) -> int:
        """Return the number of query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.depth)

    def bytes(self) -> int:
        """Return the bytes of queries, outputs and lengths, of all cached tokens, and of the pages' entries."""
        tensors = {t.name: t for t in (*self.input_tensors(), *self.output_tensors())}
        token = tensors["k"].nbytes // (self.pages * self.page_size)
        return sum(tensors[name].nbytes for name in ("q", "out", "lengths")) + self.bytes_of_tokens(2 * token)

    def flops(self) -> int:
        """Return the FLOPs of both products, of a query and keys, and of weights and values."""
        return 4 * self.heads * self.depth * sum(self.sorted_lengths())

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: the products of a score and those of an output."""
        return self.keys + self.depth

    def reference(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, page_table: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Compute sequence by sequence, with the maximum of each head's scores subtracted."""
        return self._by_heads(q, (k, v), page_table, lengths, self.average)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the average of the absolute values, each with the error that its exponent's terms allow."""
        wide = self.widened(inputs)
        caches = (wide["k"], wide["v"])
        return {"out": self._by_heads(wide["q"], caches, wide["page_table"], wide["lengths"], self.size_of_average)}

    def _by_heads(
        self,
        q: np.ndarray,
        caches: tuple[np.ndarray, np.ndarray],
        page_table: np.ndarray,
        lengths: np.ndarray,
        compute: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray],
    ) -> np.ndarray:
        """Return what `compute` gives for the queries of each sequence and key head."""
        out = np.empty_like(q)
        for s in range(self.sequences):
            keys, values = (self.tokens_of(cache, page_table, lengths, s) for cache in caches)
            for g in range(self.kv_heads):
                own = slice(g * self.group, (g + 1) * self.group)
                out[s, own] = compute(q[s, own], keys[:, g], values[:, g], 1 / np.sqrt(self.depth))
        return out

    @classmethod
    def examples(cls) -> Sequence[AttentionDecode]:
        """One token and many, whole pages and parts, ragged lengths, shared and own key heads, odd and even depths."""
        bf16, ragged = {"dtype": "bf16"}, {"ragged": "yes"}
        return [
            cls(sequences=1, heads=1, kv_heads=1, keys=1, depth=1),
            cls(sequences=2, heads=3, kv_heads=1, keys=7, depth=10, page_size=3),
            cls(sequences=1, heads=2, kv_heads=2, keys=33, depth=17, page_size=1),
            cls(sequences=5, heads=2, kv_heads=1, keys=50, depth=32, page_size=7, **ragged),
            cls(sequences=2, heads=4, kv_heads=2, keys=70, depth=64, **ragged),
            cls(sequences=1, heads=8, kv_heads=8, keys=130, depth=32, page_size=32),
            cls(sequences=1, heads=5, kv_heads=1, keys=300, depth=128),
            cls(sequences=2, heads=2, kv_heads=1, keys=40, depth=256, page_size=24, **ragged),
            cls(sequences=3, heads=2, kv_heads=1, keys=12, depth=24, page_size=5, **bf16),
            cls(sequences=1, heads=1, kv_heads=1, keys=1, depth=64, **bf16),
            cls(sequences=35, heads=1, kv_heads=1, keys=67, depth=64, page_size=6, **ragged, **bf16),
            cls(sequences=1, heads=6, kv_heads=1, keys=700, depth=64, page_size=32, **bf16),
            cls(sequences=3, heads=16, kv_heads=8, keys=150, depth=64, **ragged, **bf16),
            cls(sequences=2, heads=8, kv_heads=2, keys=258, depth=128, **ragged, **bf16),
            cls(sequences=1, heads=12, kv_heads=12, keys=64, depth=64, page_size=8, **bf16),
            cls(sequences=1, heads=4, kv_heads=2, keys=45, depth=256, page_size=4, **bf16),
        ]
