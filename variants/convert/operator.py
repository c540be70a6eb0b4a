"""convert: round f32 to bf16, or widen bf16 to f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Convert(Operator):
    """out[i] = x[i] over n elements, stored as `to`, x as the other dtype; rounded to nearest, ties to even."""

    n: int
    to: str = "bf16"

    special_inputs = {"x": ("ties", "tiny", "infinite")}
    choices = {"to": ("bf16", "f32")}
    degree = 1
    inputs = {"x": "n"}
    outputs = {"out": "n"}
    library = "torch"

    def tensor_dtype(self, name: str) -> str:
        """The dtype that each of the two has."""
        return self.to if name == "out" else {"bf16": "f32", "f32": "bf16"}[self.to]

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The numbers themselves, which the comparison rounds as they are stored."""
        return x

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: one rounding, or none."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Convert]:
        """Lengths of each remainder by 8, of one block and of several."""
        lengths = (1, 2, 3, 5, 31, 254, 1021, 4096, 4099, 20015)
        return [cls(n=n, to=to) for to in ("bf16", "f32") for n in lengths]
