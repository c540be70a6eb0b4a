"""gather: collect rows of a table by their indices: an embedding, or a batch of a data set."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Gradient, Operator, Tolerance, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class Gather(Operator):
    """batch[r] = data[order[r]] with batches="one", an embedding: data is the table, order holds the tokens.

    With batches="several", batch[r] = data[order[((step - 1) * rows + r) mod total]]: `step` counts from 1, and `order`
    holds an epoch's permutation, or those of several epochs one after the other. `data` has `items` rows of `features`
    elements, `order` has `total` int32 indices of rows; `dtype` stores data and batch.
    """

    items: int
    features: int
    rows: int
    total: int
    dtype: str = "f32"
    batches: str = "several"

    special_inputs = {"data": ("tiny", "infinite")}
    choices = {"dtype": ("f32", "bf16", "i32"), "batches": ("several", "one")}
    library = "torch"
    outputs = {"batch": "rows features"}

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the table and the indices; also the number of the batch if there are several."""
        step = {"step": "1"} if self.batches == "several" else {}
        return {"data": "items features", "order": "total", **step}

    def validate(self) -> None:
        """Refuse a single batch with another number of rows than indices."""
        if self.batches == "one" and self.total != self.rows:
            raise UsageError(
                f"{self.name}: total={self.total} is not allowed with batches=one and rows={self.rows}; use "
                f"total={self.rows}",
                kind="not-allowed",
                subject="total",
                value=self.total,
                allowed=self.rows,
            )

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.features)

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for indices and the step."""
        return "i32" if name in ("order", "step") else self.dtype

    @property
    def linear_in(self) -> Sequence[str]:
        """Return the table, where the gradient has a rule."""
        return ("data",) if self.batches == "one" and self.dtype != "i32" else ()

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the sums over the tokens of each row of the table; None for a data set, which is not trained."""
        if self.batches == "several" or self.dtype == "i32":
            return None
        if "data" not in wanted:
            return []
        axes = {name: self.axes[name] for name in ("items", "features", "rows", "dtype")}
        return [Gradient("gather_backward", axes, {"dbatch": "d.batch", "order": "order"}, {"ddata": "d.data"})]

    def bytes(self) -> int:
        """Return the bytes of the batch, and of those parts of data and order that are read for it."""
        tensors = {t.name: t for t in (*self.input_tensors(), *self.output_tensors())}
        batch, taken = tensors["batch"].nbytes, min(self.rows, self.total)
        return min(batch, tensors["data"].nbytes) + batch + 4 * (taken + len(self.inputs) - 2)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded data, large whole numbers if they are stored as such, and random indices and steps."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/order".encode())])
        if self.dtype == "i32":
            arrays["data"] = rng.integers(0, 2**30, (self.items, self.features), np.int32)
        arrays["order"] = rng.integers(0, self.items, self.total, np.int32)
        if "step" in arrays:
            arrays["step"] = rng.integers(1, 4 + 3 * self.total // self.rows, 1, np.int32)
        return arrays

    def reference(self, data: np.ndarray, order: np.ndarray, step: np.ndarray | None = None) -> np.ndarray:
        """Index the rows by NumPy."""
        places = np.arange(self.rows, dtype=np.int64, like=order)
        if step is not None:
            places = ((step.astype(np.int64) - 1) * self.rows + places) % self.total
        return data[order[places].astype(np.int64)]

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero: elements are copied."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Gather]:
        """Rows that vectors divide and not, of one element and of many, fewer and more of them than the order holds."""
        shapes = [(1, 1, 1, 1), (7, 1, 5, 7), (10, 3, 4, 9), (13, 16, 16, 26), (5, 40, 11, 3), (31, 131, 6, 31)]
        shapes += [(20, 1028, 7, 20), (600, 1, 300, 601)]
        names = ("items", "features", "rows", "total")
        found = [cls(**dict(zip(names, s, strict=True)), dtype=d) for d in cls.choices["dtype"] for s in shapes]
        for items, features, rows in ((1, 1, 1), (9, 3, 7), (50, 768, 33), (13, 16, 300), (5, 2050, 4)):
            for dtype in cls.choices["dtype"]:
                found.append(cls(items=items, features=features, rows=rows, total=rows, dtype=dtype, batches="one"))
        return found
