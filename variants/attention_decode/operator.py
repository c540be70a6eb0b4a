"""attention_decode: one new query per sequence attends over keys and values that are cached in pages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class AttentionDecode(Operator):
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
                f"attention_decode: heads={self.heads} is not allowed with kv_heads={self.kv_heads}; it must be a "
                "multiple of kv_heads",
                kind="not-allowed",
                subject="heads",
                value=self.heads,
                allowed=f"multiple of {self.kv_heads}",
            )
        if self.page_size < 1:
            raise UsageError(
                f"attention_decode: page_size={self.page_size} is not allowed; at least 1",
                kind="not-allowed",
                subject="page_size",
                value=self.page_size,
                allowed=">= 1",
            )

    @property
    def pages_per_sequence(self) -> int:
        """Return the entries of the page table for each sequence."""
        return -(-self.keys // self.page_size)

    @property
    def pages(self) -> int:
        """Return the pages of each cache: enough for `keys` tokens of every sequence."""
        return self.sequences * self.pages_per_sequence

    @property
    def group(self) -> int:
        """Return the number of query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.depth)

    def sorted_lengths(self) -> list[int]:
        """Return the tokens of each sequence, the shortest first."""
        if self.ragged == "no" or self.sequences == 1:
            return [self.keys] * self.sequences
        return [1 + (self.keys - 1) * i // (self.sequences - 1) for i in range(self.sequences)]

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for the page table and the lengths."""
        return "i32" if name in ("page_table", "lengths") else self.dtype

    def bytes(self) -> int:
        """Return the bytes of queries, outputs and lengths, of all cached tokens, and of the pages' entries."""
        lengths, tensors = self.sorted_lengths(), {t.name: t for t in (*self.input_tensors(), *self.output_tensors())}
        token = tensors["k"].nbytes // (self.pages * self.page_size)
        entries = sum(-(-length // self.page_size) for length in lengths)
        whole = sum(tensors[name].nbytes for name in ("q", "out", "lengths"))
        return whole + 2 * token * sum(lengths) + 4 * entries

    def flops(self) -> int:
        """Return the FLOPs of both products, of a query and keys, and of weights and values."""
        return 4 * self.heads * self.depth * sum(self.sorted_lengths())

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: the products of a score and those of an output."""
        return self.keys + self.depth

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded queries and caches, every page once in random order, and the lengths in random order."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/page_table".encode())])
        pages = rng.permutation(self.pages).astype(np.int32)
        arrays["page_table"] = pages.reshape(self.sequences, self.pages_per_sequence)
        arrays["lengths"] = rng.permutation(np.array(self.sorted_lengths(), np.int32))
        return arrays

    def reference(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, page_table: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Compute sequence by sequence, with the maximum of each head's scores subtracted."""
        out = np.empty_like(q)
        for s in range(self.sequences):
            keys, values = (self._tokens(cache, page_table, lengths, s) for cache in (k, v))
            for g in range(self.kv_heads):
                own = slice(g * self.group, (g + 1) * self.group)
                out[s, own] = self._weights(q[s, own], keys[:, g]) @ values[:, g]
        return out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the average of the absolute values, each with the error that its exponent's terms allow."""
        wide = self.widened(inputs)
        q, out = wide["q"], np.empty_like(wide["q"])
        for s in range(self.sequences):
            keys, values = (self._tokens(wide[n], wide["page_table"], wide["lengths"], s) for n in ("k", "v"))
            for g in range(self.kv_heads):
                own = slice(g * self.group, (g + 1) * self.group)
                weights = self._weights(q[s, own], keys[:, g])
                exponent = np.abs(q[s, own]) @ np.abs(keys[:, g]).T / np.sqrt(self.depth)
                exponent += exponent.max(axis=1, keepdims=True)  # the maximum is subtracted
                size, moved = np.abs(values[:, g]), weights * exponent
                out[s, own] = (weights + moved) @ size + moved.sum(axis=1, keepdims=True) * (weights @ size)
        return {"out": out}

    def _tokens(self, cache: np.ndarray, page_table: np.ndarray, lengths: np.ndarray, s: int) -> np.ndarray:
        """Return the cached tokens of one sequence, with axes token, key head, depth."""
        length = int(lengths[s])
        pages = page_table[s, : -(-length // self.page_size)].astype(np.int64)
        return cache[pages].reshape(-1, self.kv_heads, self.depth)[:length]

    def _weights(self, q: np.ndarray, keys: np.ndarray) -> np.ndarray:
        scores = q @ keys.T / np.sqrt(self.depth)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

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
