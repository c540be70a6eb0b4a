"""fma: eight chains of fused multiply-adds per element; the probe of the fp32 FMA rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, Tolerance

CHAINS = 8
"""Recurrences per element; the kernels have the same number written into them."""


@dataclass(frozen=True, kw_only=True)
class Fma(Operator):
    """out[i] = x_0 + ... + x_7 after `rounds` steps of x_j <- a[i] * x_j + b[i] from x_j = j / 8."""

    n: int
    rounds: int

    role = "probe"
    inputs = {"a": "n", "b": "n"}
    outputs = {"out": "n"}
    integers_exact = False

    def flops(self) -> int:
        """Return two FLOPs per step of a chain, and seven additions per element at the end."""
        return self.n * (2 * CHAINS * self.rounds + CHAINS - 1)

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded a in [0.5, 0.875) and b in [0.5, 1): every chain then climbs from below 1 to b / (1 - a) < 8.

        There are no whole-number inputs, as a whole `a` gives chains that stand still or overflow.
        """
        rng = np.random.default_rng([seed, self.n, self.rounds])
        a = 0.5 + 0.375 * rng.random(self.n, np.float32)
        b = 0.5 + 0.5 * rng.random(self.n, np.float32)
        return {"a": a.astype(np.float32), "b": b.astype(np.float32)}

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The recurrence's closed form, a^rounds x_j + b (1 - a^rounds) / (1 - a), summed over the chains.

        In float64 it is as good as the steps themselves because 1 - a >= 1/8; the steps would take hours at full size.
        """
        power = a**self.rounds
        start = sum(j / CHAINS for j in range(CHAINS))
        return power * start + CHAINS * b * (1.0 - power) / (1.0 - a)

    def tolerance(self, precision: str) -> Tolerance:
        """A bound that holds for any number of rounds.

        A step's rounding is at most u x and shrinks by a <= 7/8 in every later step; as the chains never descend, all
        steps together leave at most u x / (1 - a) <= 8 u x. The final sum of eight adds at most 7 u. All terms are
        positive, so the same bound holds for the norm. 16 u leaves no room for a narrower multiplication.
        """
        bound = 16 * UNIT_ROUNDOFF["f32" if precision == "f32" else precision]
        return Tolerance(elementwise=bound, norm=bound)

    @classmethod
    def examples(cls) -> Sequence[Fma]:
        """No round at all, numbers of rounds around the unrolled loops' lengths, and lengths around a block."""
        shapes = [(1, 1), (3, 0), (31, 2), (127, 7), (256, 8), (129, 33), (1021, 64), (5, 1000), (1, 4099)]
        return [cls(n=n, rounds=rounds) for n, rounds in shapes]
