"""attention_mla_decode: one new query per sequence attends over a compressed cache in pages (latent attention)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from opbench import Arrays, PagedDecodeGeometry, vector_width


@dataclass(frozen=True, kw_only=True)
class AttentionMlaDecode(PagedDecodeGeometry):
    """out[s,h] = sum over tokens j < lengths[s] of p[s,h,j] * ckv[s,j], p[s,h] = softmax of the scores over j.

    The score of token j is (q_nope[s,h] . ckv[s,j] + q_pe[s,h] . kpe[s,j]) / sqrt(nope_depth + rope_depth). This is
    the decoding step of DeepSeek's multi-head latent attention after the projections of keys and values were moved to
    the query and the output. All heads share one compressed row of `rank` elements per token, which is key and value
    at the same time, and a rotated key of `rope_depth`. `nope_depth`, the depth of an uncompressed key without its
    rotated part, only scales the scores.

    Token j of sequence s is row j % page_size of page page_table[s, j / page_size], in both caches. Pages lie in
    random order. All entries of the page table are valid; tokens beyond the length have no influence. `keys` is the
    capacity of a sequence in tokens. With ragged "no" every sequence has `keys` tokens. With "yes" the lengths grow in
    equal steps from 1 to `keys`, in random order; a single sequence has `keys`. `dtype` stores queries, caches and
    outputs; page table and lengths are int32.
    """

    sequences: int
    heads: int
    keys: int
    rank: int = 512
    rope_depth: int = 64
    nope_depth: int = 128
    page_size: int = 64
    ragged: str = "no"
    dtype: str = "bf16"

    choices = {"ragged": ("no", "yes"), "dtype": ("bf16", "f32")}
    integers_exact = False  # exponentials are not whole
    library = "torch"
    special_inputs = {"q_nope": ("zeros", "level", "tiny"), "q_pe": ("zeros",), "ckv": ("level",)}
    inputs = {
        "q_nope": "sequences heads rank",
        "q_pe": "sequences heads rope_depth",
        "ckv": "pages page_size rank",
        "kpe": "pages page_size rope_depth",
        "page_table": "sequences pages_per_sequence",
        "lengths": "sequences",
    }
    outputs = {"out": "sequences heads rank"}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row of both caches."""
        return vector_width(self.dtype, gcd(self.rank, self.rope_depth))

    @property
    def key_depth(self) -> int:
        """Return the elements of an uncompressed key, whose root divides the scores."""
        return self.nope_depth + self.rope_depth

    def bytes(self) -> int:
        """Return the bytes of queries, outputs and lengths, of all cached tokens, and of the pages' entries."""
        tensors = {t.name: t for t in (*self.input_tensors(), *self.output_tensors())}
        token = (tensors["ckv"].nbytes + tensors["kpe"].nbytes) // (self.pages * self.page_size)
        return sum(tensors[name].nbytes for name in ("q_nope", "q_pe", "out", "lengths")) + self.bytes_of_tokens(token)

    def flops(self) -> int:
        """Return the FLOPs of both products, of a query and keys, and of weights and values."""
        return 2 * self.heads * (2 * self.rank + self.rope_depth) * sum(self.sorted_lengths())

    def reduction(self) -> int:
        """Return the terms of the longest chain of sums: the products of a score and those of an output."""
        return self.keys + self.rank + self.rope_depth

    def reference(
        self,
        q_nope: np.ndarray,
        q_pe: np.ndarray,
        ckv: np.ndarray,
        kpe: np.ndarray,
        page_table: np.ndarray,
        lengths: np.ndarray,
    ) -> np.ndarray:
        """Compute sequence by sequence, with the maximum of each head's scores subtracted."""
        return self._by_sequences(self.average, q_nope, q_pe, ckv, kpe, page_table, lengths)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the average of the absolute values, each with the error that its exponent's terms allow."""
        return {"out": self._by_sequences(self.size_of_average, **self.widened(inputs))}

    def _by_sequences(
        self,
        compute: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray],
        q_nope: np.ndarray,
        q_pe: np.ndarray,
        ckv: np.ndarray,
        kpe: np.ndarray,
        page_table: np.ndarray,
        lengths: np.ndarray,
    ) -> np.ndarray:
        """Return what `compute` gives for the queries of each sequence."""
        out = np.empty_like(q_nope)
        for s in range(self.sequences):
            rows, rotated = (self.tokens_of(cache, page_table, lengths, s) for cache in (ckv, kpe))
            queries = np.concatenate((q_nope[s], q_pe[s]), axis=1)
            keys = np.concatenate((rows, rotated), axis=1)
            out[s] = compute(queries, keys, rows, 1 / np.sqrt(self.key_depth))
        return out

    @classmethod
    def examples(cls) -> Sequence[AttentionMlaDecode]:
        """One token and many, whole pages and parts, ragged lengths, one head and many, odd and even depths."""
        f32, ragged = {"dtype": "f32"}, {"ragged": "yes"}
        small = {"rank": 32, "rope_depth": 16, "nope_depth": 16}
        odd = {"rank": 37, "rope_depth": 5, "nope_depth": 20}
        return [
            cls(sequences=1, heads=1, keys=1, rank=1, rope_depth=1, nope_depth=1, page_size=1),
            cls(sequences=2, heads=3, keys=7, page_size=3, **odd),
            cls(sequences=1, heads=2, keys=33, page_size=1, **odd, **f32),
            cls(sequences=5, heads=5, keys=50, page_size=7, **small, **ragged, **f32),
            cls(sequences=2, heads=16, keys=70, page_size=16, **small, **ragged),
            cls(sequences=1, heads=17, keys=130, rank=64, rope_depth=8, page_size=32),
            cls(sequences=35, heads=1, keys=67, page_size=6, **small, **ragged),
            cls(sequences=1, heads=4, keys=300, rank=128, rope_depth=64, **f32),
            cls(sequences=2, heads=16, keys=40),
            cls(sequences=1, heads=16, keys=129, page_size=1, **ragged),
            cls(sequences=1, heads=6, keys=700, page_size=64, **small),
            cls(sequences=1, heads=70, keys=35, page_size=8, rank=64, rope_depth=32),
        ]
