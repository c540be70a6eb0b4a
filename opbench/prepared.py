"""A problem's data: its buffers on the device, and what must come out of each kind of run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from opbench.backends.base import Buffer
from opbench.operator import Arrays, Operator, Tolerance


@dataclass
class Expected:
    """Inputs of one run and what must come out."""

    inputs: Arrays
    reference: Arrays
    magnitude: Arrays | None
    """Scale of each element's tolerance; None where only the reference's own bits will do."""
    tolerance: Tolerance


@dataclass
class Prepared:
    """A problem's buffers on the device and its expectations, shared by all its cases."""

    problem: Operator
    seed: int
    buffers: dict[str, Buffer]
    expected: dict[tuple[str, str], Expected] = field(default_factory=dict)
    loaded: str = ""
    """Which kind of inputs the device holds."""
    made: dict[str, Arrays] = field(default_factory=dict)

    def inputs(self, kind: str) -> Arrays:
        """The inputs of a kind of run, made once; no reference is needed for them."""
        if kind not in self.made:
            self.made[kind] = self.problem.make_inputs(self.seed + (kind == "again"), integers=kind == "integers")
        return self.made[kind]

    def expect(self, kind: str, precision: str) -> Expected:
        """The expectation of a kind of run, computed once: "normal", "again" (other content) or "integers"."""
        key = (kind, precision)
        if key not in self.expected:
            other = next((e for (k, _), e in self.expected.items() if k == kind), None)
            if other is None and kind == "again" and self.problem.degree is not None:
                other = _doubled(self.expect("normal", precision), self.problem.degree)
            if other is None:
                inputs = self.inputs(kind)
                exact = kind == "integers" or self.problem.tolerance(precision).exact
                reference = self.problem.reference_outputs(inputs)
                magnitude = None if exact else self.problem.magnitude_outputs(inputs)
                other = Expected(inputs, reference, magnitude, Tolerance(0.0, 0.0))
            tolerance = self.problem.tolerance(precision) if kind != "integers" else Tolerance(0.0, 0.0)
            self.expected[key] = replace(other, tolerance=tolerance)
        return self.expected[key]


def _doubled(base: Expected, degree: int) -> Expected:
    """What follows from inputs twice as large; powers of two change no rounding."""
    factor = 2.0**degree
    magnitude = base.magnitude
    return replace(
        base,
        inputs={name: 2 * array for name, array in base.inputs.items()},
        reference={name: factor * array for name, array in base.reference.items()},
        magnitude={name: factor * array for name, array in magnitude.items()} if magnitude is not None else None,
    )
