"""A problem's data: its buffers on the device, and what must come out of each kind of run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.backend.base import Backend, Buffer
from opbench.checking.on_device import Sealed, expected_there, overwritten
from opbench.checking.verdict import Judgement
from opbench.kernels.arrays import by_pieces
from opbench.kernels.operator import Operator
from opbench.kernels.special_inputs import SPECIAL_INPUTS, with_special_inputs
from opbench.kernels.tensors import INTEGERS, Arrays, Tensor, Tolerance, from_storage, to_storage

ANY_NORM = 1e9
"""Inputs at an edge are no sample of which errors cancel: each result is judged by itself."""

FRESH_FLOPS, FRESH_BYTES = 2e8, 1 << 24
"""Up to these sizes a second reference takes a tenth of a second or so."""

AHEAD_BYTES = 1 << 22
"""From this size on a second set of inputs is made in another thread, while cases are checked on the first."""
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="inputs")


@dataclass
class Expected:
    """Inputs of one run and what must come out."""

    inputs: Arrays
    reference: Arrays
    magnitude: Arrays | None
    """Scale of each element's tolerance; None where only the reference's own bits will do."""
    tolerance: Tolerance
    scale: float = 1.0
    """What `reference` and `magnitude` are to be multiplied by: a power of two."""
    sealed: Sealed = ()
    """Where these are on the device under test, their memory there: no kernel is to write it."""


@dataclass
class Prepared:
    """A problem's buffers on the device and its expectations, shared by all its cases."""

    problem: Operator
    seed: int
    buffers: dict[str, Buffer]
    given: Arrays | None = None
    """Inputs as stored, in place of seeded normals."""
    backend: Backend | None = None
    """Where the buffers are; without one references are the host's."""
    expected: dict[tuple[str, str], Expected] = field(default_factory=dict)
    loaded: str = ""
    """Which kind of inputs the device holds."""
    made: dict[str, Arrays] = field(default_factory=dict)
    ahead: dict[str, Future[Arrays]] = field(default_factory=dict)
    """Inputs that another thread makes."""
    loaded_prints: dict[str, int] = field(default_factory=dict)
    """Fingerprints of the inputs on the device, taken when they had just been written."""
    judged: dict[tuple[str, Tolerance, str, int], Judgement] = field(default_factory=dict)
    """What was right, by kind of run, tolerance, tensor and fingerprint: the same bits need no second comparison."""

    fresh_seed: int = field(default_factory=lambda: secrets.randbits(31))
    """Drawn, so that no kernel can know the inputs of "again" and "shifted" runs."""

    spare: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)
    """Inputs by kind of run that lie on the device already."""

    @property
    def are_independent(self) -> bool:
        """Whether the inputs are independent normals: in another order they are such normals again."""
        return self.given is None and type(self.problem).make_inputs is Operator.make_inputs

    @property
    def is_doubled(self) -> bool:
        """Whether "again" is twice the normals, which needs no second reference, as a second one would take long.

        Whole numbers are not doubled: they could pass what their type holds.
        """
        few = self.problem.flops() <= FRESH_FLOPS and self.problem.bytes() <= FRESH_BYTES
        return self.problem.degree is not None and self.problem.storage not in INTEGERS and not few

    def inputs(self, kind: str) -> Arrays:
        """The inputs of a kind of run, made once; no reference is needed for them."""
        if kind not in self.made:
            self.made[kind] = self.ahead.pop(kind).result() if kind in self.ahead else self._make(kind)
        return self.made[kind]

    def make_ahead(self, kind: str) -> None:
        """Begin to make the inputs of a kind of run in another thread, while the device is busy."""
        if kind not in self.made and kind not in self.ahead and self.problem.bytes() >= AHEAD_BYTES:
            self.inputs("normal")  # others may follow from them
            self.ahead[kind] = _THREAD.submit(self._make, kind)

    def _make(self, kind: str) -> Arrays:
        if kind == "normal" and self.given is not None:
            return self.given
        if kind == "again" and self.is_doubled:
            return self.doubled()
        if kind in SPECIAL_INPUTS:
            return with_special_inputs(self.problem, self.problem.make_inputs(self.seed), kind, self.seed)
        seed = {"again": self.fresh_seed, "shifted": self.fresh_seed + 1}.get(kind, self.seed)
        return self.problem.make_inputs(seed, integers=kind == "integers")

    def doubled(self) -> Arrays:
        """Return the normals twice as large: their results need no reference, as powers of two change no rounding."""
        return {t.name: _twice(self.inputs("normal")[t.name], t) for t in self.problem.input_tensors()}

    def load(self, kind: str, verify: bool = False) -> None:
        """Have the inputs of a kind of run in their buffers; `verify` where something else may have changed them."""
        if self.loaded == kind and not (verify and any(map(self.changed, self.inputs(kind)))):
            return
        self.loaded = ""
        for name, array in self.inputs(kind).items():
            if kind in self.spare:
                self.buffers[name].copy_from(self.spare[kind][name])
            else:
                self.buffers[name].write(array)
            self.loaded_prints[name] = self.buffers[name].fingerprint()
        self.loaded = kind

    def changed(self, name: str) -> bool:
        """Whether an input is no longer what was written."""
        return self.buffers[name].fingerprint() != self.loaded_prints[name]

    def overwritten(self) -> bool:
        """Whether a kernel wrote where references lie."""
        return any(overwritten(expected.sealed) for expected in self.expected.values())

    def moved_to(self, other: Prepared) -> None:
        """Let the same problem in other buffers know what is known here."""
        other.expected, other.made, other.judged = self.expected, self.made, self.judged
        other.fresh_seed, other.ahead = self.fresh_seed, self.ahead

    def expect(self, kind: str, precision: str) -> Expected:
        """The expectation of a kind of run, computed once: "normal", "again" (other content), "integers", an edge."""
        key = (kind, precision)
        if key not in self.expected:
            other = next((e for (k, _), e in self.expected.items() if k == kind), None)
            if other is None and kind == "again" and self.is_doubled:
                base = self.expect("normal", precision)
                assert self.problem.degree is not None
                other = replace(base, inputs=self.inputs("again"), scale=2.0**self.problem.degree)
            if other is None:
                inputs = self.inputs(kind)
                exact = kind == "integers" or self.problem.allowance(precision).exact
                found = expected_there(self.backend, self.problem, inputs, exact)
                reference, magnitude, sealed = found or (*_expected_here(self.problem, inputs, exact), ())
                if magnitude and kind in SPECIAL_INPUTS:
                    magnitude = {name: _finite(m, reference[name]) for name, m in magnitude.items()}
                other = Expected(inputs, reference, magnitude, Tolerance(0.0, 0.0), sealed=sealed)
            tolerance = self.problem.allowance(precision) if kind != "integers" else Tolerance(0.0, 0.0)
            if kind in SPECIAL_INPUTS and not tolerance.exact:
                tolerance = replace(tolerance, norm=ANY_NORM)
            self.expected[key] = replace(other, tolerance=tolerance)
        return self.expected[key]


def _expected_here(problem: Operator, inputs: Arrays, exact: bool) -> tuple[Arrays, Arrays | None]:
    with ThreadPoolExecutor(2) as pool:  # half of it each, as one thread of NumPy is busy with either
        scale = None if exact else pool.submit(_quietly, problem.magnitude_outputs, inputs)
        reference = _quietly(problem.reference_outputs, inputs)
        return reference, scale.result() if scale else None


def _quietly(compute: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays:
    """Without NumPy's warnings of infinities, which some inputs hold."""
    with np.errstate(all="ignore"):
        return compute(inputs)


def _finite(magnitude: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Where a term is infinite the result's own size, and nothing where that is."""
    sizes = np.where(np.isfinite(magnitude), magnitude, np.abs(reference))
    return np.where(np.isfinite(sizes), sizes, 0.0)


def _twice(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    if tensor.is_integer:
        return array  # an index has no size
    return by_pieces(array, lambda a: to_storage(2 * from_storage(a, tensor.dtype), tensor.dtype), array.dtype)
