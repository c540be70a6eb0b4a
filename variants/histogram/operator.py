"""histogram: count the elements of a vector that lie in each of equally wide bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance, UsageError


@dataclass(frozen=True, kw_only=True)
class Histogram(Operator):
    """counts[b] = number of elements with low <= x[i] <= high in bin b, as int32; `dtype` stores x.

    The range is [-high, high], or [0, high] with low="zero". The bin of an element is the whole part of
    (x[i] - low) * bins / (high - low), where both operations are rounded to float32, as in torch.histc. A bin contains
    its lower edge; the last bin contains both edges. Elements outside of the range, infinities and NaN are not counted.
    """

    n: int
    bins: int = 256
    high: int = 4
    low: str = "negated"
    dtype: str = "f32"

    choices = {"low": ("negated", "zero"), "dtype": ("f32", "bf16")}
    special_inputs = {"x": ("ties", "zeros", "level", "tiny", "far", "infinite", "masked", "nan")}
    inputs = {"x": "n"}
    outputs = {"counts": "bins"}
    library = "torch"

    def validate(self) -> None:
        """Refuse a width of the range by which a division is not exact."""
        if self.high < 1 or self.high & (self.high - 1):
            raise UsageError(
                f"{self.name}: high={self.high} is not allowed, because the division by high must be exact; use a "
                "power of two, such as high=4",
                kind="not-allowed",
                subject="high",
                value=self.high,
                allowed="a power of two",
            )

    @property
    def lower_edge(self) -> int:
        """Return the lower edge of the range."""
        return -self.high if self.low == "negated" else 0

    @property
    def width(self) -> int:
        """Return the difference of the range's edges."""
        return self.high - self.lower_edge

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for counts."""
        return "i32" if name == "counts" else self.dtype

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero: counts are whole numbers."""
        return Tolerance(0.0, 0.0)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the counts, which have no negative term."""
        return self.reference_outputs(inputs)

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Count by NumPy; float64 results rounded to float32 are those of float32's own operations."""
        inside = x[(x >= self.lower_edge) & (x <= self.high)]
        shifted = (inside - self.lower_edge).astype(np.float32).astype(x.dtype)
        place = (shifted * (self.bins / self.width)).astype(np.float32).astype(np.int64)
        counts: np.ndarray = np.bincount(np.minimum(place, self.bins - 1), minlength=self.bins).astype(x.dtype)
        return counts

    @classmethod
    def examples(cls) -> Sequence[Histogram]:
        """Fewer and more elements than a block, whole and odd numbers, one bin, and bins that no block divides."""
        shapes = [(1, 1), (3, 2), (31, 10), (256, 256), (1021, 100), (4096, 256), (5001, 1000), (70001, 256), (8200, 7)]
        modes = [(low, dtype) for low in cls.choices["low"] for dtype in cls.choices["dtype"]]
        return [
            cls(n=n, bins=bins, high=(4, 1, 2)[(i + j) % 3], low=low, dtype=dtype)
            for i, (n, bins) in enumerate(shapes)
            for j, (low, dtype) in enumerate(modes)
            if n in (256, 4096, 5001) or (i + j) % 3 == 0
        ] + [cls(n=3000, bins=3000)]
