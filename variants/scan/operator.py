"""scan: the running sums or products along each row of a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Gradient, Operator, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class Scan(Operator):
    """out[r,c] = x[r,0] op ... op x[r,c], where op is a sum or a product (cumsum, cumprod).

    With kind="exclusive", the element x[r,c] itself does not count, and out[r,0] is 0 or 1. With direction="reverse",
    the elements from the end of the row back to x[r,c] are combined. With mask="given", elements whose `mask` is 0 do
    not count. `dtype` stores x and out, arithmetic is float32; `mask` has bytes of 0 and 1.
    """

    rows: int
    cols: int
    op: str = "sum"
    kind: str = "inclusive"
    direction: str = "forward"
    mask: str = "none"
    dtype: str = "f32"

    most_spread: ClassVar[float] = 16.0
    """The largest standard deviation of the logarithm of a product, far within float32's range of 88."""
    choices = {
        "op": ("sum", "prod"),
        "kind": ("inclusive", "exclusive"),
        "direction": ("forward", "reverse"),
        "mask": ("none", "given"),
        "dtype": ("f32", "bf16"),
    }
    outputs = {"out": "rows cols"}
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Tensor names to axes."""
        return {"x": "rows cols", "mask": "rows cols"} if self.mask == "given" else {"x": "rows cols"}

    def tensor_dtype(self, name: str) -> str:
        """The dtype of each tensor."""
        return "u8" if name == "mask" else self.dtype

    @property
    def lanes(self) -> int:
        """Elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    @property
    def special_inputs(self) -> Mapping[str, Sequence[str]]:
        """Return zeros and NaN; -infinity stays in a sum and makes a product with 0 undefined."""
        return {"x": ("zeros", "masked", "nan") if self.op == "sum" else ("zeros", "nan")}

    @property
    def degree(self) -> int | None:
        """1 for sums; products of different numbers of factors have none."""
        return 1 if self.op == "sum" else None

    @property
    def integers_exact(self) -> bool:
        """Products of many numbers have too many digits."""
        return self.op == "sum"

    @property
    def linear_in(self) -> Sequence[str]:
        """Only sums are linear."""
        return ("x",) if self.op == "sum" else ()

    def flops(self) -> int:
        """One per element."""
        return self.rows * self.cols

    def reduction(self) -> int:
        """Elements of a row."""
        return self.cols

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the gradient of a sum, a scan in the other direction; None for a product or a masked sum."""
        if self.op != "sum" or self.mask == "given":
            return None
        other = {**self.axes, "direction": "forward" if self.direction == "reverse" else "reverse"}
        return [Gradient(self.name, other, {"x": "d.out"}, {"out": "d.x"})] if wanted else []

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; for a product, numbers of both signs and of sizes near 1, so that it stays finite.

        Half of a mask is 1.
        """
        arrays = super().make_inputs(seed, integers)
        if self.op == "prod" and not integers:
            x, root = from_storage(arrays["x"], self.dtype), self.cols**0.5
            spread = min(max(1.0, root / 128), self.most_spread) / root  # bf16 has steps of 1/128 and less near 1
            arrays["x"] = to_storage(np.copysign(np.exp(x * np.float32(spread)), np.sin(1000 * x)), self.dtype)
        if self.mask == "given":
            rng = np.random.default_rng([seed, self.rows, self.cols])
            arrays["mask"] = rng.integers(0, 2, (self.rows, self.cols), np.uint8)
        return arrays

    def reference(self, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Scan by NumPy, over the reversed row for the other direction."""
        if mask is not None:
            x = np.where(mask != 0, x, float(self.op == "prod"))
        ordered = x[:, ::-1] if self.direction == "reverse" else x
        if self.kind == "exclusive":
            first = np.zeros_like(ordered[:, :1]) + (self.op == "prod")
            ordered = np.concatenate((first, ordered[:, :-1]), axis=1)
        out = ordered.cumsum(axis=1) if self.op == "sum" else ordered.cumprod(axis=1)
        return out[:, ::-1] if self.direction == "reverse" else out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return scans of the sizes of all elements; for bf16, scaled to float32's error, and the result's own size."""
        wide = self.widened(inputs)
        size = self.reference(**{**wide, "x": abs(wide["x"])})
        if self.dtype == "bf16":  # the error of float32's arithmetic, and one rounding of the result
            size = abs(self.reference(**wide)) + self._accumulated() / self.tolerance("f32").elementwise * size
        return {"out": size}

    def _accumulated(self) -> float:
        """Return the error of float32 arithmetic, relative to the scan of the elements' sizes.

        The errors of adding zero-mean numbers in any order stay far below 8 unit roundoffs (see the operator `sum`).
        Those of a product's factors grow with the square root of their number.
        """
        return 8 * UNIT_ROUNDOFF["f32"] * (1.0 if self.op == "sum" else self.cols**0.5)

    def tolerance(self, precision: str) -> Tolerance:
        """Return the error of the arithmetic and of one rounding; the norm has the base rule."""
        base, stored = super().tolerance(precision), 0.0 if self.dtype == "f32" else 2 * UNIT_ROUNDOFF[self.dtype]
        return Tolerance(self._accumulated() + stored, base.norm)

    @classmethod
    def examples(cls) -> Sequence[Scan]:
        """Rows shorter and longer than a warp, a block and a chunk of a block, whole and odd, in every mode."""
        shapes = [(1, 1), (5, 3), (64, 32), (3, 33), (2, 1000), (7, 256), (2, 1031), (1, 8192), (2, 5001), (1, 12296)]
        modes = [
            (op, kind, way)
            for op in cls.choices["op"]
            for kind in cls.choices["kind"]
            for way in cls.choices["direction"]
        ]
        return [
            cls(rows=rows, cols=cols, op=op, kind=kind, direction=direction, dtype=("f32", "bf16")[(i + j) % 2])
            for i, (rows, cols) in enumerate(shapes)
            for j, (op, kind, direction) in enumerate(modes)
            if cols > 5000 or (i + j) % 3 == 0
        ] + [
            cls(rows=64, cols=32, dtype="bf16"),
            cls(rows=1, cols=16384, dtype="bf16"),
            cls(rows=3, cols=33, op="prod", mask="given", dtype="bf16"),
            cls(rows=64, cols=32, kind="exclusive", direction="reverse", mask="given"),
            cls(rows=2, cols=1031, direction="reverse", mask="given"),
            cls(rows=1, cols=8192, op="prod", kind="exclusive", mask="given"),
            cls(rows=1, cols=12296, mask="given", dtype="bf16"),
        ]
