"""gather: collect the rows of a batch from a data set, in the order of a permutation."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Gather(Operator):
    """batch[r] = data[order[((step - 1) * rows + r) mod total]], row by row; `dtype` stores data and batch.

    `step` counts from 1. `order` holds `total` positions among the `items` rows of `data`: an epoch's permutation, or
    those of several epochs one after the other.
    """

    items: int
    features: int
    rows: int
    total: int
    dtype: str = "f32"

    special_inputs = {"data": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "bf16", "i32")}
    role = "training step"
    inputs = {"data": "items features", "order": "total", "step": "1"}
    outputs = {"batch": "rows features"}

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        lanes = 8 if self.dtype == "bf16" else 4
        while self.features % lanes:
            lanes //= 2
        return lanes

    def tensor_dtype(self, name: str) -> str:
        """Positions and the step are integers."""
        return "i32" if name in ("order", "step") else self.dtype

    def bytes(self) -> int:
        """Of the data and of the order only what the batch takes of them, where that is less than all."""
        tensors = {t.name: t for t in (*self.input_tensors(), *self.output_tensors())}
        batch, taken = tensors["batch"].nbytes, min(self.rows, self.total)
        return min(batch, tensors["data"].nbytes) + batch + 4 * (taken + 1)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded data, whole numbers of some size where they are stored as such; positions and steps at random."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/order".encode())])
        if self.dtype == "i32":
            arrays["data"] = rng.integers(0, 2**30, (self.items, self.features), np.int32)
        arrays["order"] = rng.integers(0, self.items, self.total, np.int32)
        arrays["step"] = rng.integers(1, 4 + 3 * self.total // self.rows, 1, np.int32)
        return arrays

    def reference(self, data: np.ndarray, order: np.ndarray, step: np.ndarray) -> np.ndarray:
        """NumPy's own."""
        rows = np.arange(self.rows, dtype=np.int64, like=order)
        places = ((step.astype(np.int64) - 1) * self.rows + rows) % self.total
        return data[order[places].astype(np.int64)]

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: nothing is computed."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Gather]:
        """Rows that vectors divide and not, of one element and of many, fewer and more of them than the order holds."""
        shapes = [(1, 1, 1, 1), (7, 1, 5, 7), (10, 3, 4, 9), (13, 16, 16, 26), (5, 40, 11, 3), (31, 131, 6, 31)]
        shapes += [(20, 1028, 7, 20), (600, 1, 300, 601)]
        names = ("items", "features", "rows", "total")
        return [cls(**dict(zip(names, s, strict=True)), dtype=d) for d in cls.choices["dtype"] for s in shapes]
