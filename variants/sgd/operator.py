"""sgd: one step of stochastic gradient descent, with or without momentum, on a flat array of parameters."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import UNIT_ROUNDOFF, Arrays, Operator, Tolerance, magnitude_of_rounded, rounded

ROUNDINGS = 8
"""Of float32, that one result may be off: half a dozen operations from a gradient to a parameter."""


@dataclass(frozen=True, kw_only=True)
class Sgd(Operator):
    """g = factor * gradient + decay * p; velocity = mu * velocity + g; p = p - lr * velocity (without momentum lr * g).

    rates = (lr, unread, unread, factor), hyper = (mu, 0, 0, decay): the same as Adam's. copy="bf16" stores the new
    parameter a second time, rounded.
    """

    n: int
    momentum: str = "no"
    copy: str = "none"

    special_inputs = {"gradient": ("zeros", "far", "nan")}
    choices = {"momentum": ("no", "yes"), "copy": ("none", "bf16")}
    library = "torch"
    integers_exact = False  # rates are not whole

    @property
    def inputs(self) -> Mapping[str, str]:
        """A velocity only with momentum."""
        velocity = {"velocity": "n"} if self.momentum == "yes" else {}
        return {"parameter": "n", "gradient": "n", **velocity, "rates": "4", "hyper": "4"}

    @property
    def outputs(self) -> Mapping[str, str]:
        """The parameter, the velocity where there is one, and the copy."""
        velocity = {"new_velocity": "n"} if self.momentum == "yes" else {}
        return {"new_parameter": "n", **velocity, **({"stored": "n"} if self.copy == "bf16" else {})}

    @property
    def in_place(self) -> Mapping[str, str]:
        """Of what there is."""
        return {new: new.removeprefix("new_") for new in self.outputs if new != "stored"}

    def tensor_dtype(self, name: str) -> str:
        """All but the copy are f32."""
        return "bf16" if name == "stored" else "f32"

    def flops(self) -> int:
        """Return five FLOPs per element, and two more with momentum."""
        return (5 + 2 * (self.momentum == "yes")) * self.n

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded tensors, and rates of a training run."""
        arrays = super().make_inputs(seed)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/step".encode())])
        lr, factor = 10.0 ** rng.uniform(-3, 0), rng.choice([1.0, rng.uniform(0.1, 1)])
        arrays["rates"] = np.array([lr, 1.0, 1.0, factor], np.float32)
        arrays["hyper"] = np.array([0.9 if self.momentum == "yes" else 0.0, 0.0, 0.0, 0.01], np.float32)
        return arrays

    def reference(self, **tensors: np.ndarray) -> Arrays:
        """In float64; the copy is rounded as it is stored."""
        p, rates, hyper = tensors["parameter"], tensors["rates"], tensors["hyper"]
        taken = rates[3] * tensors["gradient"] + hyper[3] * p
        found = {}
        if self.momentum == "yes":
            taken = found["new_velocity"] = hyper[0] * tensors["velocity"] + taken
        found["new_parameter"] = p - rates[0] * taken
        return found | ({"stored": rounded(found["new_parameter"], "bf16")} if self.copy == "bf16" else {})

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Every term by its size.

        The copy is that of the exact parameter, except where the allowance of the parameter itself reaches over a tie.
        """
        wide = self.widened(inputs)
        found = {}
        p, hyper = np.abs(wide["parameter"]), wide["hyper"]
        taken = wide["rates"][3] * np.abs(wide["gradient"]) + hyper[3] * p
        if self.momentum == "yes":
            taken = found["new_velocity"] = hyper[0] * np.abs(wide["velocity"]) + taken
        size = found["new_parameter"] = p + wide["rates"][0] * taken
        if self.copy == "bf16":
            exact = self.reference(**wide)["new_parameter"]
            limit = self.tolerance("f32").elementwise
            found["stored"] = magnitude_of_rounded(exact, size, limit, "bf16")
        return found

    def tolerance(self, precision: str) -> Tolerance:
        """ROUNDINGS, element by element; the norm adds nothing, as no element is a sum of others' errors."""
        return Tolerance(elementwise=ROUNDINGS * UNIT_ROUNDOFF["f32"], norm=1.0)

    @classmethod
    def examples(cls) -> Sequence[Sgd]:
        """Lengths of each remainder by 8, of one block and of several; with momentum, with a copy and without."""
        lengths = (1, 2, 3, 5, 254, 1023, 4096, 4100, 20015)
        modes = [(momentum, copy) for copy in cls.choices["copy"] for momentum in cls.choices["momentum"]]
        return [cls(n=n, momentum=momentum, copy=copy) for n in lengths for momentum, copy in modes]
