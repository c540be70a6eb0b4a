"""adam: one step of Adam or AdamW on a flat array of parameters."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, Tolerance, magnitude_of_rounded, rounded

ROUNDINGS = 16
"""Of float32, that one result may be off: a dozen operations follow one another from a gradient to a parameter."""


@dataclass(frozen=True, kw_only=True)
class Adam(Operator):
    """m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p = p - lr c1 m / (sqrt(c2 v) + eps), with g = factor * gradient.

    rates = (lr, c1 = 1/(1-b1^t), c2 = 1/(1-b2^t), factor), hyper = (b1, b2, eps, decay). With decay="coupled" decay * p
    is added to g; "decoupled" takes lr * decay * p from p (AdamW). copy="bf16" stores the new parameter a second time,
    rounded.
    """

    n: int
    decay: str = "none"
    copy: str = "none"

    special_inputs = {"gradient": ("zeros", "far", "nan"), "moment1": ("zeros",), "moment2": ("zeros",)}
    choices = {"decay": ("none", "coupled", "decoupled"), "copy": ("none", "bf16")}
    library = "torch"
    inputs = {"parameter": "n", "gradient": "n", "moment1": "n", "moment2": "n", "rates": "4", "hyper": "4"}
    in_place = {"new_parameter": "parameter", "new_moment1": "moment1", "new_moment2": "moment2"}
    integers_exact = False  # roots and quotients are not whole

    @property
    def outputs(self) -> Mapping[str, str]:
        """The copy is a fourth one."""
        found = {"new_parameter": "n", "new_moment1": "n", "new_moment2": "n"}
        return found | ({"stored": "n"} if self.copy == "bf16" else {})

    def tensor_dtype(self, name: str) -> str:
        """All but the copy are f32."""
        return "bf16" if name == "stored" else "f32"

    def flops(self) -> int:
        """Return 14 FLOPs per element, and two more with weight decay."""
        return (14 + 2 * (self.decay != "none")) * self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded tensors, second moments as squares, gradients of several sizes; rates of a step in a training run."""
        arrays = super().make_inputs(seed)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/step".encode())])
        arrays["gradient"] *= np.float32(10.0) ** rng.integers(-4, 1)
        arrays["moment1"] *= np.abs(arrays["gradient"])
        arrays["moment2"] *= arrays["moment2"]
        arrays["moment2"] *= arrays["gradient"] * arrays["gradient"]
        # Both corrections count here. Earlier, what derives them from the betas in float32, as PyTorch does, is off.
        step = int(10.0 ** rng.uniform(1.7, 2.1))
        lr, factor = 10.0 ** rng.uniform(-4, -1), rng.choice([1.0, rng.uniform(0.1, 1)])
        arrays["hyper"] = np.array([0.9, 0.999, 1e-8, 0.01], np.float32)
        beta1, beta2 = (float(beta) for beta in arrays["hyper"][:2])  # as stored: 1 - 0.999 loses five digits
        arrays["rates"] = np.array([lr, 1 / (1 - beta1**step), 1 / (1 - beta2**step), factor], np.float32)
        return arrays

    def reference(
        self,
        parameter: np.ndarray,
        gradient: np.ndarray,
        moment1: np.ndarray,
        moment2: np.ndarray,
        rates: np.ndarray,
        hyper: np.ndarray,
    ) -> Arrays:
        """In float64; the copy is rounded as it is stored."""
        (lr, c1, c2, factor), (b1, b2, eps, decay) = rates, hyper
        g = factor * gradient + (decay * parameter if self.decay == "coupled" else 0.0)
        m, v = b1 * moment1 + (1 - b1) * g, b2 * moment2 + (1 - b2) * g * g
        kept = parameter * (1 - lr * decay) if self.decay == "decoupled" else parameter
        p = kept - lr * (m * c1) / (np.sqrt(v * c2) + eps)
        found = {"new_parameter": p, "new_moment1": m, "new_moment2": v}
        return found | ({"stored": rounded(p, "bf16")} if self.copy == "bf16" else {})

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Every difference turned into a sum: m, v, and |p| with the size of what is taken from it.

        Where terms of g cancel, v is as wrong as the square of their sizes, and the quotient with it. The copy is that
        of the exact parameter, except where the allowance of the parameter itself reaches over a tie.
        """
        wide = self.widened(inputs)
        (lr, c1, c2, factor), (b1, b2, eps, decay) = wide["rates"], wide["hyper"]
        p, g = np.abs(wide["parameter"]), np.abs(factor * wide["gradient"])
        g = g + decay * p if self.decay == "coupled" else g
        m, v = b1 * np.abs(wide["moment1"]) + (1 - b1) * g, b2 * wide["moment2"] + (1 - b2) * g * g
        exact = self.reference(**wide)
        least = exact["new_moment2"]
        cancelled = np.where(least > 0, v / np.where(least > 0, least, 1.0), 1.0)
        size = p * (1 + lr * decay) + lr * c1 * m / (np.sqrt(least * c2) + eps) * cancelled
        found = {"new_parameter": size, "new_moment1": m, "new_moment2": v}
        if self.copy == "bf16":
            limit = self.tolerance("f32").elementwise
            found["stored"] = magnitude_of_rounded(exact["new_parameter"], size, limit, "bf16")
        return found

    def tolerance(self, precision: str) -> Tolerance:
        """ROUNDINGS, element by element; the norm adds nothing, as no element is a sum of others' errors."""
        return Tolerance(elementwise=ROUNDINGS * UNIT_ROUNDOFF["f32"], norm=1.0)

    @classmethod
    def examples(cls) -> Sequence[Adam]:
        """Lengths of each remainder by 8, of one block and of several; every decay, with a copy and without."""
        lengths = (1, 2, 3, 5, 254, 1023, 4096, 4100, 20015)
        modes = [(decay, copy) for copy in cls.choices["copy"] for decay in cls.choices["decay"]]
        return [cls(n=n, decay=decay, copy=copy) for n in lengths for decay, copy in modes]
