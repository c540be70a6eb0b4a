"""dropout: in training, zero elements by a seeded mask and scale up the others; else the identity."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Gradient, Operator, Tolerance, UsageError, passed_on


@dataclass(frozen=True, kw_only=True)
class Dropout(Operator):
    """out[i] = x[i] / (1 - percent/100) where element i's 32 random bits are at least percent/100 * 2^32, else 0.

    The bits are word i % 4 of Philox4x32-10 with the counter (i // 4, 0, 0, 0) and the key (seed, 0). With
    counter="step" the counter is (i // 4, step, 0, 0), so that each step of a training run has a mask of its own: that
    of the gradient is drawn again, and no byte is kept for it. At inference (training="no") out = x. `dtype` stores
    both arrays.
    """

    n: int
    percent: int = 50
    seed: int = 1
    training: str = "no"
    counter: str = "zero"
    dtype: str = "f32"

    special_inputs = {"x": ("infinite",)}
    choices = {"training": ("no", "yes"), "counter": ("zero", "step"), "dtype": ("f32", "bf16")}
    degree = 1
    linear_in = ("x",)
    outputs = {"out": "n"}
    library = "torch"

    @property
    def inputs(self) -> Mapping[str, str]:
        """The step where masks differ by it."""
        return {"x": "n", **({"step": "1"} if self.counter == "step" else {})}

    @property
    def threshold(self) -> int:
        """Random bits below it drop the element."""
        return self.percent * 2**32 // 100

    @property
    def integers_exact(self) -> bool:
        """Whether the kept elements are scaled by a whole number."""
        return self.training == "no" or 100 % (100 - self.percent) == 0

    def validate(self) -> None:
        """Refuse to drop everything, and a seed of more than 31 bits."""
        if self.percent > 99:
            raise UsageError(
                f"{self.name}: percent={self.percent} is not allowed, because dropout would drop every element; use "
                "percent=0 to percent=99",
                kind="not-allowed",
                subject="percent",
                value=self.percent,
                allowed="<= 99",
            )
        if self.seed >= 2**31:
            raise UsageError(
                f"{self.name}: seed={self.seed} is not allowed, because a seed has 31 bits; use a seed below {2**31}",
                kind="not-allowed",
                subject="seed",
                value=self.seed,
                allowed=f"< {2**31}",
            )

    def tensor_dtype(self, name: str) -> str:
        """Steps are counted in integers."""
        return "i32" if name == "step" else self.dtype

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient]:
        """The same mask on the gradient; at inference there is none."""
        if self.training == "no":
            return passed_on("d.out", "d.x")
        step = {"step": "step"} if self.counter == "step" else {}
        return [Gradient(self.name, self.axes, {"x": "d.out", **step}, {"out": "d.x"})]

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded, and one of the first hundred steps."""
        arrays = super().make_inputs(seed, integers)
        if self.counter == "step":
            rng = np.random.default_rng([seed, zlib.crc32(f"{self}/step".encode())])
            arrays["step"] = rng.integers(1, 101, 1, np.int32)
        return arrays

    def reference(self, x: np.ndarray, step: np.ndarray | None = None) -> np.ndarray:
        """The mask from NumPy's arithmetic on 64 bits."""
        if self.training == "no":
            return x
        groups = np.arange(-(-self.n // 4), dtype=np.uint64, like=x)
        if step is not None:
            groups = groups + (step.astype(np.int64).astype(np.uint64) << np.uint64(32))
        bits = philox4x32(groups, self.seed).reshape(-1)[: self.n]
        return np.where(bits >= self.threshold, x * (100 / (100 - self.percent)), 0.0)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact for the identity."""
        return Tolerance(0.0, 0.0) if self.training == "no" else super().tolerance(precision)

    @classmethod
    def examples(cls) -> Sequence[Dropout]:
        """Lengths of each remainder by 8, several shares and seeds, every mode and dtype."""
        lengths = [(1, 50, 1), (2, 25, 7), (3, 80, 1), (5, 0, 3), (1021, 50, 12345), (4096, 10, 1), (20014, 50, 2)]
        return [
            cls(n=n, percent=percent, seed=seed, training=training, counter=counter, dtype=dtype)
            for training, counter in (("yes", "zero"), ("yes", "step"), ("no", "zero"), ("no", "step"))
            for dtype in ("f32", "bf16")
            for n, percent, seed in lengths
        ]


def philox4x32(counter: np.ndarray, seed: int) -> np.ndarray:
    """Four 32-bit words for each 64-bit counter, whose shape is (count, 4), by ten rounds.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    zeros = np.zeros_like(counter)
    words, key = [counter & mask, counter >> half, zeros, zeros], [seed, 0]
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> half) ^ words[1] ^ np.uint64(key[0]),
            second & mask,
            (first >> half) ^ words[3] ^ np.uint64(key[1]),
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words, axis=1).astype(np.uint32)
