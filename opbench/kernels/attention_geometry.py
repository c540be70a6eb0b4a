"""Base classes of attention, its gradient and decoding: strides, shared heads, masks, scores and paged caches."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.arrays import MAX_THREADS, run_parallel
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays

THREADS_BYTES = 1 << 31
"""Most bytes of the scores and of what is computed from them that all threads of `write_attention` hold at once."""
ARRAYS_OF_SCORES = 5
"""Arrays as large as the scores of one head that a thread holds at once."""


class AttentionGeometry(Operator):
    """Base of attention and its gradient.

    An operator declares the axes batch, heads, kv_heads, queries, keys and depth and the modes mask and layout itself;
    the base declares none. Layout "heads" stores all tokens of a head together, "tokens" all heads of a token, and
    "qkv" the queries, keys and values of each token in one packed array.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    mask: str
    layout: str

    def operand_axes(self) -> dict[str, str]:
        """Return the physical axes of queries, keys and values, or of the packed array."""
        if self.layout == "qkv":
            return {"qkv": "batch queries 3 heads depth"}
        if self.layout == "tokens":
            keys = "batch keys kv_heads depth"
            return {"q": "batch queries heads depth", "k": keys, "v": keys}
        keys = "batch kv_heads keys depth"
        return {"q": "batch heads queries depth", "k": keys, "v": keys}

    def output_axes(self) -> str:
        """Return the physical axes of the output, outermost first."""
        return "batch heads queries depth" if self.layout == "heads" else "batch queries heads depth"

    def validate(self) -> None:
        """Raise UsageError if heads is no multiple of kv_heads, or if the mask or layout cannot have these sizes."""
        if self.layout == "qkv" and (self.kv_heads != self.heads or self.keys != self.queries):
            raise UsageError(
                f"{self.name}: layout=qkv with heads={self.heads}, kv_heads={self.kv_heads}, queries={self.queries} "
                f"and keys={self.keys}; in this layout every token has one query, key and value per head, so set "
                "kv_heads = heads and keys = queries",
                kind="not-allowed",
                subject="layout",
                value=self.layout,
                allowed="kv_heads == heads and keys == queries",
            )
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; every key head must "
                "serve the same number of query heads, so choose a multiple",
                kind="not-allowed",
                subject="heads",
                value=self.heads,
                allowed=self.kv_heads,
            )
        if self.mask == "causal" and self.queries > self.keys:
            raise UsageError(
                f"{self.name}: mask=causal with queries={self.queries} and keys={self.keys}, so the first queries "
                f"would see no key; set queries to at most {self.keys}",
                kind="not-allowed",
                subject="queries",
                value=self.queries,
                allowed=self.keys,
            )

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a query and a key in one head that the mask does not hide."""
        if self.mask == "none":
            return self.queries * self.keys
        return self.queries * (self.keys - self.queries) + self.queries * (self.queries + 1) // 2

    @property
    def part_stride(self) -> int:
        """Return the elements from a token's queries to its keys, and from there to its values, in the packed array."""
        return self.heads * self.depth if self.layout == "qkv" else 0

    @property
    def query_stride(self) -> int:
        """Return the stride, in elements, from one query of a head to the next."""
        return self._strides(self.queries, self.heads)[0]

    @property
    def query_head_stride(self) -> int:
        """Return the stride, in elements, from the first query of a head to that of the next head."""
        return self._strides(self.queries, self.heads)[1]

    @property
    def query_batch_stride(self) -> int:
        """Return the stride, in elements, from the queries of one sequence to those of the next."""
        return self._strides(self.queries, self.heads)[2]

    @property
    def key_stride(self) -> int:
        """Return the stride, in elements, from one key (or value) of a head to the next."""
        return self._strides(self.keys, self.kv_heads)[0]

    @property
    def key_head_stride(self) -> int:
        """Return the stride, in elements, from the first key (or value) of a head to that of the next head."""
        return self._strides(self.keys, self.kv_heads)[1]

    @property
    def key_batch_stride(self) -> int:
        """Return the stride, in elements, from the keys (or values) of one sequence to those of the next."""
        return self._strides(self.keys, self.kv_heads)[2]

    @property
    def out_stride(self) -> int:
        """Return the stride, in elements, from one output of a head to the next."""
        return self.depth if self.layout == "heads" else self.heads * self.depth

    @property
    def out_batch_stride(self) -> int:
        """Return the stride, in elements, from the outputs of one sequence to those of the next."""
        return self.heads * self.queries * self.depth

    def _strides(self, tokens: int, heads: int) -> tuple[int, int, int]:
        if self.layout == "heads":
            return self.depth, tokens * self.depth, heads * tokens * self.depth
        token = heads * self.depth * (3 if self.layout == "qkv" else 1)
        return token, self.depth, tokens * token

    def by_heads(self, operands: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return q, k and v with axes batch, head, token, depth, as views of the operands."""
        if self.layout == "qkv":
            return [operands["qkv"][:, :, index].swapaxes(1, 2) for index in range(3)]
        return [operands[name] if self.layout == "heads" else operands[name].swapaxes(1, 2) for name in ("q", "k", "v")]

    def output_by_heads(self, output: np.ndarray) -> np.ndarray:
        """Return the output or its gradient with axes batch, head, query, depth, as a view."""
        return output if self.layout == "heads" else output.swapaxes(1, 2)

    def heads_and_keys(self) -> list[tuple[int, int, int]]:
        """Return the sequence, the query head and the key head that it shares, for each query head."""
        queries_per_key = self.heads // self.kv_heads
        return [(b, h, h // queries_per_key) for b in range(self.batch) for h in range(self.heads)]

    def scores(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Return the scores of one head's queries [queries, depth] with its keys; -infinity where masked."""
        scores: np.ndarray = q @ k.T / np.sqrt(self.depth)
        if self.mask == "causal":
            visible = np.tri(self.queries, self.keys, self.keys - self.queries, dtype=bool, like=scores)
            scores = np.where(visible, scores, -np.inf)
        return scores

    def write_attention(self, operands: Mapping[str, np.ndarray], out: np.ndarray, logsumexp: np.ndarray) -> None:
        """Compute attention of the operands into its output and its statistics, several heads at a time."""
        (q, k, v), out, heads = self.by_heads(operands), self.output_by_heads(out), self.heads_and_keys()

        def compute(index: int) -> None:
            b, h, g = heads[index]
            scores = self.scores(q[b, h], k[b, g])
            maximum = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - maximum)
            sums = weights.sum(axis=1, keepdims=True)
            out[b, h] = (weights @ v[b, g]) / sums
            logsumexp[b, h] = (maximum + np.log(sums))[:, 0]

        bytes_per_thread = ARRAYS_OF_SCORES * self.queries * self.keys * q.itemsize
        run_parallel(compute, len(heads), max(1, min(MAX_THREADS, THREADS_BYTES // bytes_per_thread)))


class PagedDecodeGeometry(Operator):
    """Base of attention of one query per sequence and head over caches in pages of `page_size` tokens.

    An operator declares the axes sequences, keys and page_size, the mode ragged, and the inputs page_table and
    lengths itself; the base declares none. Token j of sequence s is row j % page_size of page
    page_table[s, j / page_size]. With ragged "no" every sequence has `keys` tokens; with "yes" the lengths grow in
    equal steps from 1 to `keys`, in random order.
    """

    sequences: int
    keys: int
    page_size: int
    ragged: str

    def validate(self) -> None:
        """Raise UsageError if a page has no tokens."""
        if self.page_size < 1:
            raise UsageError(
                f"{self.name}: page_size={self.page_size} is not allowed; choose at least 1",
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

    def sorted_lengths(self) -> list[int]:
        """Return the tokens of each sequence, the shortest first."""
        if self.ragged == "no" or self.sequences == 1:
            return [self.keys] * self.sequences
        return [1 + (self.keys - 1) * i // (self.sequences - 1) for i in range(self.sequences)]

    def tensor_dtype(self, name: str) -> str:
        """Return the dtype of a tensor: `i32` for the page table and the lengths, `storage` for all others."""
        return "i32" if name in ("page_table", "lengths") else self.storage

    def bytes_of_tokens(self, token_bytes: int) -> int:
        """Return the bytes of all cached tokens, `token_bytes` each, and of their pages' entries in the page table."""
        lengths = self.sorted_lengths()
        return token_bytes * sum(lengths) + 4 * sum(-(-length // self.page_size) for length in lengths)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded queries and caches, every page once in random order, and the lengths in random order."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/page_table".encode())])
        pages = rng.permutation(self.pages).astype(np.int32)
        arrays["page_table"] = pages.reshape(self.sequences, self.pages_per_sequence)
        arrays["lengths"] = rng.permutation(np.array(self.sorted_lengths(), np.int32))
        return arrays

    def tokens_of(self, cache: np.ndarray, page_table: np.ndarray, lengths: np.ndarray, sequence: int) -> np.ndarray:
        """Return the cached tokens of one sequence, with axes token, then those of the cache after page and row."""
        length = int(lengths[sequence])
        pages = page_table[sequence, : -(-length // self.page_size)].astype(np.int64)
        return cache[pages].reshape(-1, *cache.shape[2:])[:length]

    @staticmethod
    def average(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
        """Return the averages of values, weighted by the softmax of the queries' scores; one row per query."""
        average: np.ndarray = _weights(q, keys, scale) @ values
        return average

    @staticmethod
    def size_of_average(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
        """Return the magnitude that scales the tolerance of `average`: the averages of the absolute values,
        plus the largest change that rounding the terms of a softmax exponent may cause."""
        weights = _weights(q, keys, scale)
        exponent = np.abs(q) @ np.abs(keys).T * scale
        exponent += exponent.max(axis=1, keepdims=True)  # the maximum is subtracted
        value_magnitudes, weight_errors = np.abs(values), weights * exponent
        bound: np.ndarray = (weights + weight_errors) @ value_magnitudes + weight_errors.sum(axis=1, keepdims=True) * (
            weights @ value_magnitudes
        )
        return bound


def _weights(q: np.ndarray, keys: np.ndarray, scale: float) -> np.ndarray:
    scores = q @ keys.T * scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return shares
