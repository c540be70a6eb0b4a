"""tick: read the step number and the learning rates from a table on the device."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, Tolerance

BETAS = ((0.9, 0.999), (0.0, 0.0), (0.5, 0.99), (0.95, 0.9999))


@dataclass(frozen=True, kw_only=True)
class Tick(Operator):
    """new_step = step + 1; rates = (table[min(step, steps - 1)], 1 / (1 - b1^new_step), 1 / (1 - b2^new_step), 1).

    b1 and b2 are the first two of `hyper`; powers are of float64. Whoever reads new_step counts from 1. Where an
    optimiser keeps its momentum in b1 and has no b2, the two corrections are not read. The last of the rates is the
    factor on the gradient: with factor=later it is not written, as someone else does when the gradient is known.
    """

    steps: int
    factor: str = "one"

    role = "training step"
    inputs = {"step": "1", "table": "steps", "hyper": "4"}
    choices = {"factor": ("one", "later")}
    in_place = {"new_step": "step"}
    integers_exact = False  # a beta of 1 has no correction

    @property
    def outputs(self) -> Mapping[str, str]:
        """The rates as optimisers take them, or all but the last."""
        return {"new_step": "1", "rates": "4" if self.factor == "one" else "3"}

    def tensor_dtype(self, name: str) -> str:
        """Steps are counted in integers."""
        return "i32" if name in ("step", "new_step") else "f32"

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """A step of the table or after its end, rates above 0, and betas that optimisers have, 0 among them."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        step = int(rng.choice([0, rng.integers(self.steps), self.steps, self.steps + 2]))
        return {
            "step": np.array([step], np.int32),
            "table": rng.uniform(1e-4, 1.0, self.steps).astype(np.float32),
            "hyper": np.array([*BETAS[int(rng.integers(len(BETAS)))], 1e-8, 0.01], np.float32),
        }

    def reference(self, step: np.ndarray, table: np.ndarray, hyper: np.ndarray) -> Arrays:
        """In float64."""
        count = step + 1
        rate = table[np.minimum(step, self.steps - 1).astype(np.int64)]
        rates = np.concatenate([rate, 1 / (1 - hyper[0] ** count), 1 / (1 - hyper[1] ** count), np.ones_like(rate)])
        return {"new_step": count, "rates": rates if self.factor == "one" else rates[:3]}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """The results themselves: the subtraction is of float64."""
        return self.reference_outputs(inputs)

    def tolerance(self, precision: str) -> Tolerance:
        """2 roundings of float32: one is the result's, and float64's powers may move it over a tie; a step is exact."""
        return Tolerance(elementwise=2 * UNIT_ROUNDOFF["f32"], norm=1.0)

    @classmethod
    def examples(cls) -> Sequence[Tick]:
        """Tables of one rate and of many."""
        return [
            cls(steps=steps, factor=factor)
            for factor, sizes in (("one", (1, 2, 3, 5, 7, 31, 1024)), ("later", (1, 3, 1021)))
            for steps in sizes
        ]
