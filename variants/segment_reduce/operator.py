"""segment_reduce: the sums or means of consecutive rows of a matrix, for segments of any length."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, vector_width


@dataclass(frozen=True, kw_only=True)
class SegmentReduce(Operator):
    """out[s, c] = sum or mean of x[r, c] over the rows r of segment s; `dtype` stores x and out.

    Segment s has the rows from offsets[s] up to, but without, offsets[s + 1]. The offsets increase from 0 to `rows`.
    An empty segment gives 0. These are the sums of a jagged tensor, whose sequences have different lengths. Arithmetic
    is float32.
    """

    segments: int
    rows: int
    cols: int
    op: str = "sum"
    dtype: str = "f32"

    choices = {"op": ("sum", "mean"), "dtype": ("f32", "bf16")}
    special_inputs = {"x": ("zeros",)}
    inputs = {"x": "rows cols", "offsets": "bounds"}
    outputs = {"out": "segments cols"}
    degree = 1
    linear_in = ("x",)
    library = "torch"

    @property
    def bounds(self) -> int:
        """The number of offsets: one more than segments."""
        return self.segments + 1

    @property
    def lanes(self) -> int:
        """Elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    @property
    def integers_exact(self) -> bool:
        """Means of whole numbers are not whole."""
        return self.op == "sum"

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor."""
        return "i32" if name == "offsets" else self.dtype

    def flops(self) -> int:
        """Return one addition per element."""
        return self.rows * self.cols

    def reduction(self) -> int:
        """Return the most rows that a segment can have."""
        return max(1, self.rows)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded inputs; the lengths of segments are random, with an exponential distribution."""
        inputs = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/offsets".encode())])
        shares = rng.exponential(size=self.segments)
        lengths = rng.multinomial(self.rows, shares / shares.sum())
        inputs["offsets"] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return inputs

    def reference(self, x: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Sum each segment by NumPy."""
        out = np.zeros((self.segments, self.cols), x.dtype, like=x)
        for segment in range(self.segments):
            first, end = int(offsets[segment]), int(offsets[segment + 1])
            if end > first:
                total = x[first:end].sum(axis=0)
                out[segment] = total / (end - first) if self.op == "mean" else total
        return out

    @classmethod
    def examples(cls) -> Sequence[SegmentReduce]:
        """Ones, empty segments, segments longer and shorter than a block, columns that vectors divide and not."""
        sizes = [(1, 1, 1), (5, 3, 7), (3, 100, 33), (4, 37, 128), (2, 300, 260), (17, 129, 64), (1, 517, 6)]
        return [
            cls(segments=segments, rows=rows, cols=cols, op=op, dtype=dtype)
            for op in cls.choices["op"]
            for dtype in cls.choices["dtype"]
            for segments, rows, cols in sizes
        ]
