"""top_k: the k largest elements of each row of a matrix, and their indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class TopK(Operator):
    """values[r,:] = the k largest elements of x[r,:], largest first; x[r,indices[r,j]] = values[r,j].

    Of equal elements the one with the lower index comes first, so there is one right result. A NaN counts as larger
    than every number, as in PyTorch and NumPy; -0 equals +0. `dtype` stores x and values, indices are int32.
    """

    rows: int
    cols: int
    k: int
    dtype: str = "f32"

    choices = {"dtype": ("f32", "bf16")}
    special_inputs = {
        "x": ("ties", "zeros", "level", "tiny", "far", "infinite", "masked", "finite_mask", "nan", "descending")
    }
    inputs = {"x": "rows cols"}
    outputs = {"values": "rows k", "indices": "rows k"}
    library = "torch"

    def validate(self) -> None:
        """Refuse more results than a row has elements."""
        if self.k > self.cols:
            raise UsageError(
                f"{self.name}: k={self.k} is not allowed, because a row has cols={self.cols} elements; use a k of at "
                f"most {self.cols}",
                kind="not-allowed",
                subject="k",
                value=self.k,
                allowed=self.cols,
            )

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for indices."""
        return "i32" if name == "indices" else self.dtype

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero: elements are selected."""
        return Tolerance(0.0, 0.0)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sizes of the results."""
        return {name: abs(array) for name, array in self.reference_outputs(inputs).items()}

    def reference(self, x: np.ndarray) -> Arrays:
        """Sort the reversed row in ascending order; read backwards, it is in order of value and then of index."""
        ascending = np.argsort(x[:, ::-1], axis=1, kind="stable")
        indices = self.cols - 1 - ascending[:, ::-1][:, : self.k]
        return {"values": np.take_along_axis(x, indices, axis=1), "indices": indices.astype(x.dtype)}

    @classmethod
    def examples(cls) -> Sequence[TopK]:
        """One element, whole rows, rows shorter and longer than a block and than its buffer, whole and odd."""
        shapes = [(1, 1, 1), (3, 5, 2), (5, 33, 33), (2, 256, 16), (4, 1000, 10), (2, 4096, 64), (3, 5001, 100)]
        shapes += [(2, 20000, 64), (2, 3002, 500), (40, 40, 3), (1, 16384, 1)]
        return [cls(rows=r, cols=c, k=k, dtype=dtype) for r, c, k in shapes for dtype in cls.choices["dtype"]]
