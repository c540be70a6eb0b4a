"""gather_backward: the gradient of an embedding's table, for each row the sum of the gradients of its tokens."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from opbench import Arrays, Operator, Tolerance, vector_width


@dataclass(frozen=True, kw_only=True)
class GatherBackward(Operator):
    """ddata[i] = sum over r with order[r] == i of dbatch[r]; 0 for an item without an index.

    `order` has `rows` int32 indices from 0 to items - 1. `dtype` stores dbatch; ddata, which is summed up over a whole
    batch, is float32 always.
    """

    items: int
    features: int
    rows: int
    dtype: str = "f32"

    special_inputs = {"dbatch": ("zeros", "level")}
    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    inputs = {"dbatch": "rows features", "order": "rows"}
    outputs = {"ddata": "items features"}
    linear_in = ("dbatch",)
    degree = 1

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row of dbatch."""
        return vector_width(self.dtype, self.features)

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for indices and float32 for the sums."""
        return {"order": "i32", "ddata": "f32"}.get(name, self.dtype)

    def flops(self) -> int:
        """Return one addition per element of dbatch."""
        return self.rows * self.features

    def reduction(self) -> int:
        """Return the most terms of a sum, at most 65536: longer sums are in blocks, whose error does not grow."""
        return min(self.rows, 65536)

    def tolerance(self, precision: str) -> Tolerance:
        """Return the base rule for float32 outputs: nothing is rounded to bf16."""
        return Operator.tolerance(replace(self, dtype="f32"), "f32" if self.dtype == "bf16" else precision)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded gradients and indices; as in text, low ones are frequent and most items have none."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/order".encode())])
        arrays["order"] = (self.items * rng.random(self.rows) ** 3).astype(np.int32)
        return arrays

    def reference(self, dbatch: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Add the rows one after the other."""
        ddata = np.zeros_like(dbatch, shape=(self.items, self.features))
        for row, item in enumerate(order.astype(np.int64).tolist()):
            ddata[item] += dbatch[row]
        return ddata

    @classmethod
    def examples(cls) -> Sequence[GatherBackward]:
        """Rows that vectors divide and not, of one element and of many, fewer and more of them than items."""
        shapes = [(1, 1, 1), (9, 3, 7), (1, 5, 300), (50, 768, 33), (13, 16, 300), (5, 2050, 4), (300, 36, 129)]
        return [
            cls(items=items, features=features, rows=rows, dtype=dtype)
            for dtype in cls.choices["dtype"]
            for items, features, rows in shapes
        ]
