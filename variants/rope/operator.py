"""rope: rotate pairs of elements of each head by angles that depend on the token, and backwards as its gradient."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, Gradient, Operator, UsageError, vector_width


@dataclass(frozen=True, kw_only=True)
class Rope(Operator):
    """out[i] = x[i] cos[i] - x[j] sin[i] and out[j] = x[j] cos[i] + x[i] sin[i] for pairs (i, j) of each head's depth.

    With pairs "halves", j = i + depth / 2; with "neighbours" the pair number i is of elements 2 i and 2 i + 1. `cos`
    and `sin` have a row per token of a sequence and are float32. With direction "backward" the sine is negated, which
    rotates back and is the gradient. `dtype` stores x and out.
    """

    batch: int
    tokens: int
    heads: int
    depth: int
    pairs: str = "halves"
    direction: str = "forward"
    dtype: str = "f32"

    special_inputs = {"x": ("zeros",)}
    choices = {"pairs": ("halves", "neighbours"), "direction": ("forward", "backward"), "dtype": ("f32", "bf16")}
    library = "torch"
    linear_in = ("x",)
    degree = 2
    inputs: ClassVar[Mapping[str, str]] = {
        "x": "batch tokens heads depth",
        "cos": "tokens half",
        "sin": "tokens half",
    }
    outputs: ClassVar[Mapping[str, str]] = {"out": "batch tokens heads depth"}

    @property
    def half(self) -> int:
        """Return the pairs of a head."""
        return self.depth // 2

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a half, with neighbours a head."""
        return vector_width(self.dtype, self.half if self.pairs == "halves" else self.depth)

    def validate(self) -> None:
        """Refuse an odd depth."""
        if self.depth % 2:
            raise UsageError(
                f"rope: depth={self.depth} is not allowed, because rope rotates pairs of elements; use an even depth",
                kind="not-allowed",
                subject="depth",
                value=self.depth,
                allowed="even",
            )

    def tensor_dtype(self, name: str) -> str:
        """Return float32 for the tables."""
        return "f32" if name in ("cos", "sin") else self.dtype

    def flops(self) -> int:
        """Return three FLOPs per element: two products and a sum."""
        return 3 * self.batch * self.tokens * self.heads * self.depth

    def reduction(self) -> int:
        """Return the products per element."""
        return 2

    def gradients(self, wanted: frozenset[str]) -> Sequence[Gradient] | None:
        """Return the opposite rotation for x; None for the tables, which are not trained."""
        if wanted & {"cos", "sin"}:
            return None
        opposite = {"forward": "backward", "backward": "forward"}[self.direction]
        tensors = {"x": "d.out", "cos": "cos", "sin": "sin"}
        return [Gradient(self.name, {**self.axes, "direction": opposite}, tensors, {"out": "d.x"})] if wanted else []

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals, with cosine and sine of random angles; whole numbers for all if requested."""
        arrays = super().make_inputs(seed, integers)
        if not integers:
            rng = np.random.default_rng([seed, zlib.crc32(f"{self}/angles".encode())])
            angles = 2 * np.pi * rng.random((self.tokens, self.half))
            arrays["cos"], arrays["sin"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return arrays

    def reference(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """Compute both elements of all pairs."""
        out = np.empty_like(x)
        (first, second), (to_first, to_second) = self._pairs_of(x), self._pairs_of(out)
        cos, sin = cos[None, :, None], (sin if self.direction == "forward" else -sin)[None, :, None]
        to_first[...] = first * cos - second * sin
        to_second[...] = second * cos + first * sin
        return out

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sums of the absolute values of both terms."""
        wide = {name: np.abs(array) for name, array in self.widened(inputs).items()}
        size = np.empty_like(wide["x"])
        (first, second), (to_first, to_second) = self._pairs_of(wide["x"]), self._pairs_of(size)
        cos, sin = wide["cos"][None, :, None], wide["sin"][None, :, None]
        to_first[...] = first * cos + second * sin
        to_second[...] = second * cos + first * sin
        return {"out": size}

    def _pairs_of(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.pairs == "halves":
            return array[..., : self.half], array[..., self.half :]
        return array[..., 0::2], array[..., 1::2]

    @classmethod
    def examples(cls) -> Sequence[Rope]:
        """One pair and many, halves and heads that vectors divide and not, whole blocks and parts of blocks."""
        shapes = [(1, 1, 1, 2), (2, 5, 3, 6), (1, 7, 2, 64), (2, 3, 5, 20), (3, 4, 8, 128), (1, 9, 1, 514)]
        modes = [(pairs, direction) for pairs in cls.choices["pairs"] for direction in cls.choices["direction"]]
        return [
            cls(batch=b, tokens=t, heads=h, depth=d, pairs=pairs, direction=direction, dtype=dtype)
            for number, (b, t, h, d) in enumerate(shapes)
            for dtype in cls.choices["dtype"]
            for pairs, direction in (modes if number in (1, 4) else modes[number % 2 :: 2])
        ]
