"""reduce: reduce a tensor along one axis to a sum, mean, extreme, product, norm, or the index of an extreme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Gradient, Operator, Tolerance, from_storage, to_storage, vector_width

REDUCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(axis=1),
    "mean": lambda x: x.mean(axis=1),
    "max": lambda x: x.max(axis=1),
    "min": lambda x: x.min(axis=1),
    "prod": lambda x: x.prod(axis=1),
    "l1": lambda x: abs(x).sum(axis=1),
    "l2": lambda x: (x * x).sum(axis=1) ** 0.5,
    "argmax": lambda x: x.argmax(axis=1).astype(x.dtype),
    "argmin": lambda x: x.argmin(axis=1).astype(x.dtype),
}


@dataclass(frozen=True, kw_only=True)
class Reduce(Operator):
    """out[o,i] = x[o,0,i] op x[o,1,i] op ... op x[o,axis-1,i]; `dtype` stores x and out, sums are float32.

    A reduction along the last axis has inner = 1, one along the first has outer = 1. l1 is the sum of absolute values,
    l2 the root of the sum of squares. argmax and argmin return int32 indices along the axis, of the first of equal
    elements. A NaN counts as the largest element for max and argmax, and as the smallest for min and argmin, as in
    PyTorch and NumPy: max and min return NaN, argmax and argmin the index of the first NaN.
    """

    outer: int
    axis: int
    inner: int = 1
    op: str = "sum"
    dtype: str = "f32"

    most_spread: ClassVar[float] = 16.0
    """The largest standard deviation of the logarithm of a product, far within float32's range of 88."""
    choices = {"op": tuple(REDUCTIONS), "dtype": ("f32", "bf16")}
    inputs = {"x": "outer axis inner"}
    outputs = {"out": "outer inner"}
    library = "torch"

    @property
    def selects(self) -> bool:
        """Whether the result is an element, or its index: nothing is rounded."""
        return self.op in ("max", "min", "argmax", "argmin")

    @property
    def has_index(self) -> bool:
        """Whether the result is an index."""
        return self.op in ("argmax", "argmin")

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row (inner = 1) or `inner`."""
        return vector_width(self.dtype, self.axis if self.inner == 1 else self.inner)

    @property
    def special_inputs(self) -> Mapping[str, Sequence[str]]:
        """Return the kinds that an operation defines; sums of infinities of both signs are NaN."""
        if self.selects:
            return {"x": ("ties", "zeros", "level", "tiny", "far", "infinite", "masked", "finite_mask", "nan")}
        if self.op in ("sum", "mean"):
            return {"x": ("zeros", "masked", "nan")}
        return {"x": ("zeros", "nan") if self.op == "prod" else ("zeros", "infinite", "nan")}

    @property
    def degree(self) -> int | None:
        """1, except for products, and for indices, which do not change when elements are doubled."""
        return None if self.op == "prod" or self.has_index else 1

    @property
    def integers_exact(self) -> bool:
        """Means and roots are not whole, and products of many numbers have too many digits."""
        return self.op not in ("mean", "prod", "l2")

    @property
    def linear_in(self) -> Sequence[str]:
        """Only sums and means are linear."""
        return ("x",) if self.op in ("sum", "mean") else ()

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the gradient of a sum, mean or norm; None for other operations."""
        read = {"sum": (), "mean": (), "l1": ("x",), "l2": ("x", "out")}.get(self.op)
        if read is None:
            return None
        tensors = {**{name: name for name in read}, "dout": "d.out"}
        return [Gradient("reduce_backward", self.axes, tensors, {"dx": "d.x"})] if wanted else []

    def tensor_dtype(self, name: str) -> str:
        """Return int32 for indices."""
        return "i32" if name == "out" and self.has_index else self.dtype

    def flops(self) -> int:
        """Return one FLOP per element, two with an absolute value or a square; 0 for a selection, which compares."""
        return 0 if self.selects else (2 if self.op in ("l1", "l2") else 1) * self.outer * self.axis * self.inner

    def reduction(self) -> int:
        """Return the number of elements along the axis."""
        return 1 if self.selects else self.axis

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; for a product, numbers of both signs and of sizes near 1, so that it stays finite."""
        arrays = super().make_inputs(seed, integers)
        if self.op == "prod" and not integers:
            x, root = from_storage(arrays["x"], self.dtype), self.axis**0.5
            spread = min(max(1.0, root / 128), self.most_spread) / root  # bf16 has steps of 1/128 and less near 1
            arrays["x"] = to_storage(np.copysign(np.exp(x * np.float32(spread)), np.sin(1000 * x)), self.dtype)
        return arrays

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Reduce by NumPy."""
        return np.asarray(REDUCTIONS[self.op](x), like=x)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the sizes of all terms; for bf16, scaled to float32's error, and the result's own size."""
        x = self.widened(inputs)["x"]
        result = abs(REDUCTIONS[self.op](x))
        if self.selects:
            return {"out": result}
        size = REDUCTIONS[self.op](abs(x))
        if self.dtype == "bf16":  # the error of float32's arithmetic, and one rounding of the result
            size = result + self._accumulated() / self.tolerance("f32").elementwise * size
        return {"out": size}

    def _accumulated(self) -> float:
        """Return the error of float32 sums, relative to the sum of the terms' sizes.

        The errors of adding zero-mean numbers in any order stay far below 8 unit roundoffs (see the operator `sum`).
        Those of terms of one sign, and of a product's factors, grow with the square root of their number.
        """
        return 8 * UNIT_ROUNDOFF["f32"] * (1.0 if self.op in ("sum", "mean") else self.axis**0.5)

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero for selections; sums that may cancel have no bound relative to the norm of the results."""
        if self.selects:
            return Tolerance(0.0, 0.0)
        base, stored = super().tolerance(precision), 0.0 if self.dtype == "f32" else 2 * UNIT_ROUNDOFF[self.dtype]
        return Tolerance(self._accumulated() + stored, 1.0 if self.op in ("sum", "mean") else base.norm)

    @classmethod
    def examples(cls) -> Sequence[Reduce]:
        """Rows and columns, short, long and odd; the longest of each in every mode."""
        rows = [(1, 1), (3, 5), (37, 3), (5, 33), (64, 16), (2, 1024), (7, 257), (300, 12), (2, 130), (9, 512)]
        columns = [(1, 1, 2), (2, 7, 3), (1, 33, 32), (3, 64, 130), (5, 4, 256), (2, 65, 8), (1, 130, 600)]
        shapes = [*((outer, axis, 1) for outer, axis in rows), *columns]
        modes = [(op, dtype) for dtype in cls.choices["dtype"] for op in REDUCTIONS]
        found = []
        for i, (outer, axis, inner) in enumerate(shapes):
            for j in range(3):
                op, dtype = modes[(7 * i + 5 * j) % len(modes)]
                found.append(cls(outer=outer, axis=axis, inner=inner, op=op, dtype=dtype))
        for i, (op, dtype) in enumerate(modes):
            found.append(cls(outer=2 + i % 2, axis=(12288, 5001)[i % 2], op=op, dtype=dtype))
            found.append(cls(outer=1 + i % 2, axis=(1024, 517)[i % 2], inner=(24, 6)[i % 2], op=op, dtype=dtype))
        return list(dict.fromkeys(found))
