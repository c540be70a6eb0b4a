"""record: store the loss of a training step in the list of all losses."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Record(Operator):
    """new_losses = losses with [step - 1] = loss; a step beyond `steps` changes nothing. `step` counts from 1."""

    steps: int

    role = "training step"
    inputs = {"losses": "steps", "loss": "1", "step": "1"}
    outputs = {"new_losses": "steps"}
    in_place = {"new_losses": "losses"}

    def tensor_dtype(self, name: str) -> str:
        """Steps are counted in integers."""
        return "i32" if name == "step" else "f32"

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded losses, and a step among them or after their end."""
        arrays = super().make_inputs(seed, integers)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/step".encode())])
        arrays["step"] = rng.integers(1, self.steps + 2, 1, np.int32)
        return arrays

    def reference(self, losses: np.ndarray, loss: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The list with one element replaced."""
        return np.where(np.arange(self.steps, like=losses) == step - 1, loss, losses)

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: nothing is computed."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Record]:
        """Lists of one loss, and longer than a block."""
        return [cls(steps=steps) for steps in (1, 2, 31, 256, 1021)]
