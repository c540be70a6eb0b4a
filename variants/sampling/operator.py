"""sampling: draw a token for each row of probabilities, among the k most probable or among the top-p ones."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Operator, Tolerance, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class Sampling(Operator):
    """token[r] is drawn from row r of `probabilities` by the random number uniform[r]; `probability[r]` is its share.

    filter="top_k" keeps the top_k[r] largest probabilities of a row. "top_p" keeps the fewest largest ones whose sum
    is at least top_p[r] times the sum of the row (nucleus sampling). "top_k_top_p" applies top_k first, and top_p to
    what it keeps. The filters set the smallest kept probability. All that are equal to it are kept too.

    The kept probabilities are added up in the order of their indices. The token is the first index whose running sum
    is greater than uniform[r] times the sum of all kept ones. `probability` is the token's probability divided by
    that sum. Rows need not add up to 1. A row without a positive probability gives token -1 and probability 0.

    Every result is exact, in any order of summation: a probability p is clamped to 0 ... 1 (NaN counts as 0), and has
    the mass floor(p * 2^31), a whole number. Masses are added as 64-bit whole numbers. top_p and uniform are clamped
    and rounded down to multiples of 2^-24, with 1 - 2^-24 as the largest uniform. top_k below 1 counts as 1, and more
    than the row has as all. Thus nothing depends on how float32 would round a sum near a limit.

    `dtype` stores the probabilities. top_k and token are int32, the others float32.
    """

    rows: int
    cols: int
    filter: str = "top_k_top_p"
    dtype: str = "f32"

    mass_of_one: ClassVar[int] = 2**31
    steps_of_one: ClassVar[int] = 2**24
    """The steps of top_p and uniform, as many as float32 has between 0.5 and 1."""
    choices = {"filter": ("top_k_top_p", "top_k", "top_p"), "dtype": ("f32", "bf16", "f16")}
    special_inputs = {"probabilities": ("ties", "zeros", "level", "tiny", "infinite", "nan")}
    outputs = {"token": "rows", "probability": "rows"}
    library = "torch"
    integers_exact = False  # shares are fractions

    @property
    def inputs(self) -> Mapping[str, str]:
        """Return the probabilities, the limits of the filters and the random numbers."""
        limits = {name: "rows" for name in ("top_k", "top_p") if name in self.filters}
        return {"probabilities": "rows cols", **limits, "uniform": "rows"}

    @property
    def filters(self) -> Sequence[str]:
        """Return the filters in the order in which they apply."""
        return ("top_k", "top_p") if self.filter == "top_k_top_p" else (self.filter,)

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Return the dtype of each tensor."""
        return self.dtype if name == "probabilities" else "i32" if name in ("top_k", "token") else "f32"

    def tolerance(self, precision: str) -> Tolerance:
        """Return zero: sums of whole numbers are exact, and a share is one quotient of whole numbers, rounded once."""
        return Tolerance(0.0, 0.0)

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sizes of the results."""
        return {name: abs(array) for name, array in self.reference_outputs(inputs).items()}

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return softmaxes of seeded normals, flat to steep; limits and random numbers over their whole ranges."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/limits".encode())])
        scores = from_storage(arrays["probabilities"], self.dtype) * rng.uniform(0.5, 4.0, (self.rows, 1))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = weights / weights.sum(axis=1, keepdims=True)
        arrays["probabilities"] = to_storage(shares.astype(np.float32), self.dtype)
        if "top_k" in self.filters:
            most = min(self.cols, 100)
            arrays["top_k"] = np.where(
                rng.random(self.rows) < 0.125, self.cols, rng.integers(1, most, self.rows, endpoint=True)
            ).astype(np.int32)
        if "top_p" in self.filters:
            arrays["top_p"] = (1 - rng.random(self.rows)).astype(np.float32)
        arrays["uniform"] = rng.random(self.rows, np.float32)
        return arrays

    def reference(
        self,
        probabilities: np.ndarray,
        uniform: np.ndarray,
        top_k: np.ndarray | None = None,
        top_p: np.ndarray | None = None,
    ) -> Arrays:
        """Sort each row to get the smallest kept probability; float64 adds the masses exactly."""
        clamped = np.where(probabilities > 0, np.minimum(probabilities, 1.0), 0.0)
        ordered = -np.sort(-clamped, axis=1)
        smallest = np.zeros_like(uniform)
        if top_k is not None:
            rank = np.clip(top_k, 1, self.cols).astype(np.int64) - 1
            smallest = np.take_along_axis(ordered, rank[:, None], axis=1)[:, 0]
        masses = np.floor(clamped * self.mass_of_one)
        if top_p is not None:
            total = np.where(clamped >= smallest[:, None], masses, 0.0).sum(axis=1)
            wanted = np.maximum(1.0, self._part(total, self._steps(top_p), self.steps_of_one - 1))
            reached = np.floor(ordered * self.mass_of_one).cumsum(axis=1) >= wanted[:, None]
            last = reached.argmax(axis=1)[:, None]
            smallest = np.where(reached[:, -1], np.take_along_axis(ordered, last, axis=1)[:, 0], 0.0)
        sums = np.where(clamped >= smallest[:, None], masses, 0.0).cumsum(axis=1)
        total = sums[:, -1]
        wanted = self._part(total, np.minimum(self._steps(uniform), self.steps_of_one - 1), 0)
        token = (sums > wanted[:, None]).argmax(axis=1)
        own = np.take_along_axis(masses, token[:, None], axis=1)[:, 0]
        return {
            "token": np.where(total > 0, token, -1).astype(uniform.dtype),
            "probability": np.where(total > 0, own / np.maximum(total, 1.0), 0.0),
        }

    def _steps(self, share: np.ndarray) -> np.ndarray:
        """Return a share from 0 to 1 as a whole number of steps."""
        return np.floor(np.where(share > 0, np.minimum(share, 1.0), 0.0) * self.steps_of_one)

    def _part(self, total: np.ndarray, steps: np.ndarray, rounding: int) -> np.ndarray:
        """Return floor((total * steps + rounding) / steps_of_one), from products below 2^53."""
        high = np.floor(total / self.steps_of_one)
        low = total - high * self.steps_of_one
        return high * steps + np.floor((low * steps + rounding) / self.steps_of_one)

    @classmethod
    def examples(cls) -> Sequence[Sampling]:
        """One token, rows shorter and longer than a warp and a block's tile, whole and odd, in every mode."""
        shapes = [(1, 1), (5, 3), (70, 33), (16, 256), (9, 1000), (3, 4096), (3, 5001), (2, 8200), (1, 20000)]
        modes = [(filter, dtype) for filter in cls.choices["filter"] for dtype in cls.choices["dtype"]]
        return [
            cls(rows=rows, cols=cols, filter=filter, dtype=dtype)
            for i, (rows, cols) in enumerate(shapes)
            for j, (filter, dtype) in enumerate(modes)
            if (i + j) % 3 == 0 or 256 <= cols <= 4096
        ]
