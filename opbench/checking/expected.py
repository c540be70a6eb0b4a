"""A problem's data: its buffers on the device, and the expected outputs for each kind of inputs."""

from __future__ import annotations

import functools
import random
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.backend.base import Backend, Buffer
from opbench.checking.on_device import FingerprintedMemory, expected_on_device, is_overwritten
from opbench.checking.verdict import Judgement
from opbench.kernels.arrays import by_pieces
from opbench.kernels.operator import Operator
from opbench.kernels.special_inputs import SPECIAL_INPUTS, with_special_inputs
from opbench.kernels.tensors import INTEGERS, Arrays, Tensor, Tolerance, from_storage, to_storage
from opbench.timing.phases import timed_phase

ANY_NORM = 1e9
"""A norm tolerance that is never exceeded, for special inputs: only single elements of their outputs are judged."""

FRESH_FLOPS, FRESH_BYTES = 2e8, 1 << 24
"""The limits up to which a second reference takes at most about 0.1 s."""

MIN_PREFETCH_BYTES = 1 << 22
"""From this size on, a second set of inputs is made in another thread while cases are checked on the first."""
INPUT_MEMORY_FACTOR = 24
"""Free memory required to make three sets of inputs at once, as a multiple of the problem's bytes: for each set the
stored arrays, and float32 or float64 arrays from which they are computed."""
_INPUT_THREADS = ThreadPoolExecutor(2, thread_name_prefix="inputs")


@dataclass
class Expected:
    """The inputs and the expected outputs of one run."""

    inputs: Arrays
    reference: Arrays
    magnitude: Arrays | None
    """The scale of each element's tolerance; None if results must equal the reference bit for bit."""
    tolerance: Tolerance
    scale: float = 1.0
    """The factor for `reference` and `magnitude`, a power of two."""
    fingerprinted_memory: FingerprintedMemory = ()
    """The device memory of references on the device under test, which no kernel may write; else empty."""


@dataclass
class PreparedProblem:
    """A problem's buffers on the device and its expected outputs, shared by all its cases."""

    problem: Operator
    seed: int
    buffers: dict[str, Buffer]
    given_inputs: Arrays | None = None
    """Stored inputs that replace the seeded normals; None for seeded inputs."""
    backend: Backend | None = None
    """The backend of the buffers; without one, references are computed on the host."""
    expected: dict[tuple[str, str], Expected] = field(default_factory=dict)
    loaded_kind: str = ""
    """The kind of inputs currently on the device; empty for none."""
    generated_inputs: dict[str, Arrays] = field(default_factory=dict)
    pending_inputs: dict[str, Future[Arrays]] = field(default_factory=dict)
    """Inputs that another thread is making."""
    loaded_fingerprints: dict[str, int] = field(default_factory=dict)
    """Fingerprints of the inputs on the device, taken just after they were written."""
    right_judgements: dict[tuple[str, Tolerance, str, int], Judgement] = field(default_factory=dict)
    """Right outputs by kind of run, tolerance, tensor and fingerprint: the same bits need no second comparison."""

    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    """The seed of all random choices that a kernel must not predict; see `rng`."""

    device_inputs: Mapping[str, Mapping[str, Buffer]] = field(default_factory=dict)
    """Inputs that are already on the device, by kind of run."""

    def rng(self, purpose: str) -> random.Random:
        """Return a random number generator for one purpose.

        Its numbers depend on the secret, the problem and the purpose only, not on other generators.
        """
        return random.Random(f"{self.secret}/{self.problem.name}{self.problem}/{purpose}")

    @functools.cached_property
    def second_seed(self) -> int:
        """Return the seed of the inputs "again" and "shifted", which differs from the first seed."""
        return self.rng("again").getrandbits(31)

    @property
    def are_independent(self) -> bool:
        """Return whether the inputs are independent normals: then a permutation of them is a valid input, too."""
        return self.given_inputs is None and type(self.problem).make_inputs is Operator.make_inputs

    @property
    def is_doubled(self) -> bool:
        """Return whether the inputs "again" are twice the normals, which needs no second reference.

        Whole numbers are not doubled, because they could overflow.
        """
        is_cheap = self.problem.flops() <= FRESH_FLOPS and self.problem.bytes() <= FRESH_BYTES
        return self.problem.degree is not None and self.problem.storage not in INTEGERS and not is_cheap

    def inputs(self, kind: str) -> Arrays:
        """Return one kind of inputs; they are generated once and need no reference."""
        if kind not in self.generated_inputs:
            with timed_phase("inputs"):
                self.generated_inputs[kind] = (
                    self.pending_inputs.pop(kind).result() if kind in self.pending_inputs else self._make_inputs(kind)
                )
        return self.generated_inputs[kind]

    def prefetch(self, kind: str) -> None:
        """Start to generate one kind of inputs in another thread.

        Independent inputs are drawn in many threads: normals first, the others while the device is busy. An operator
        that computes inputs from others mostly uses one thread, so all its kinds are generated at once.
        """
        is_made = kind in self.generated_inputs or kind in self.pending_inputs
        if is_made or self.problem.bytes() < MIN_PREFETCH_BYTES:
            return
        at_once = not self.are_independent and _is_free(INPUT_MEMORY_FACTOR * self.problem.bytes())
        if not at_once and kind != "again":
            return
        if not at_once or self.is_doubled:
            self.inputs("normal")
        self.pending_inputs[kind] = _INPUT_THREADS.submit(self._make_inputs, kind)

    def wait_for_inputs(self) -> None:
        """Wait until no other thread generates inputs, because none may compute while cases are timed."""
        wait(self.pending_inputs.values())

    def _make_inputs(self, kind: str) -> Arrays:
        if kind == "normal" and self.given_inputs is not None:
            return self.given_inputs
        if kind == "again" and self.is_doubled:
            return self.doubled_inputs()
        if kind in SPECIAL_INPUTS:
            return with_special_inputs(self.problem, self.problem.make_inputs(self.seed), kind, self.seed)
        seed = {"again": self.second_seed, "shifted": self.second_seed + 1}.get(kind, self.seed)
        return self.problem.make_inputs(seed, integers=kind == "integers")

    def doubled_inputs(self) -> Arrays:
        """Return the normals times two. Their reference is exactly twice the first one, so it needs no computation."""
        return {t.name: _doubled_input(self.inputs("normal")[t.name], t) for t in self.problem.input_tensors()}

    def load(self, kind: str, verify: bool = False) -> None:
        """Write one kind of inputs to the buffers unless they are there.

        `verify` checks that nothing has changed them since they were written.
        """
        if self.loaded_kind == kind and not (verify and any(map(self.is_changed, self.inputs(kind)))):
            return
        self.loaded_kind = ""
        with timed_phase("inputs"):
            for name, array in self.inputs(kind).items():
                if kind in self.device_inputs:
                    self.buffers[name].copy_from(self.device_inputs[kind][name])
                else:
                    self.buffers[name].write(array)
                self.loaded_fingerprints[name] = self.buffers[name].fingerprint()
        self.loaded_kind = kind

    def is_changed(self, name: str) -> bool:
        """Return whether an input on the device differs from the data that was written."""
        return self.buffers[name].fingerprint() != self.loaded_fingerprints[name]

    def is_overwritten(self) -> bool:
        """Return whether a kernel wrote to the memory of a reference on the device."""
        return any(is_overwritten(expected.fingerprinted_memory) for expected in self.expected.values())

    def share_with(self, moved_problem: PreparedProblem) -> None:
        """Share references, inputs and judgements with the same problem in other buffers."""
        moved_problem.expected, moved_problem.generated_inputs, moved_problem.right_judgements = (
            self.expected,
            self.generated_inputs,
            self.right_judgements,
        )
        moved_problem.secret, moved_problem.pending_inputs = self.secret, self.pending_inputs

    def expect(self, input_kind: str, precision: str) -> Expected:
        """Return the expected outputs for one kind of inputs, computed once.

        A kind is "normal", "again" (other normals), "integers" or a kind of special inputs.
        """
        key = (input_kind, precision)
        if key not in self.expected:
            expected_outputs = next((e for (k, _), e in self.expected.items() if k == input_kind), None)
            if expected_outputs is None and input_kind == "again" and self.is_doubled:
                normal_outputs = self.expect("normal", precision)
                assert self.problem.degree is not None
                expected_outputs = replace(normal_outputs, inputs=self.inputs("again"), scale=2.0**self.problem.degree)
            if expected_outputs is None:
                inputs = self.inputs(input_kind)
                exact = input_kind == "integers" or self.problem.allowance(precision).exact
                with timed_phase("references"):
                    device_outputs = expected_on_device(self.backend, self.problem, inputs, exact)
                    reference, magnitude, fingerprinted_memory = device_outputs or (
                        *_expected_on_host(self.problem, inputs, exact),
                        (),
                    )
                if magnitude and input_kind in SPECIAL_INPUTS:
                    magnitude = {name: _finite_magnitude(m, reference[name]) for name, m in magnitude.items()}
                expected_outputs = Expected(
                    inputs, reference, magnitude, Tolerance(0.0, 0.0), fingerprinted_memory=fingerprinted_memory
                )
            tolerance = self.problem.allowance(precision) if input_kind != "integers" else Tolerance(0.0, 0.0)
            if input_kind in SPECIAL_INPUTS and not tolerance.exact:
                tolerance = replace(tolerance, norm=ANY_NORM)
            if input_kind == "nan":
                tolerance = replace(tolerance, keeps_nan=True)
            self.expected[key] = replace(expected_outputs, tolerance=tolerance)
        return self.expected[key]


def _is_free(nbytes: int) -> bool:
    """Return whether the host has so much free memory."""
    from opbench.emulator.buffer import available_memory

    return (available_memory() or 0) >= nbytes


def _expected_on_host(problem: Operator, inputs: Arrays, exact: bool) -> tuple[Arrays, Arrays | None]:
    """Return the reference and the magnitude of a problem's outputs, computed with NumPy; no magnitude if `exact`."""
    with ThreadPoolExecutor(2) as pool:  # each of the two keeps one NumPy thread busy
        scale = None if exact else pool.submit(_without_warnings, problem.magnitude_outputs, inputs)
        reference = _without_warnings(problem.reference_outputs, inputs)
        return reference, scale.result() if scale else None


def _without_warnings(compute: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays:
    """Compute without NumPy's warnings about infinities, which some inputs contain."""
    with np.errstate(all="ignore"):
        return compute(inputs)


def _finite_magnitude(magnitude: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Replace infinite magnitudes by the result's absolute value, or by 0 if that is infinite, too."""
    magnitudes = np.where(np.isfinite(magnitude), magnitude, np.abs(reference))
    return np.where(np.isfinite(magnitudes), magnitudes, 0.0)


def _doubled_input(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Return an input times two; an integer input, such as an index, unchanged."""
    if tensor.is_integer:
        return array  # an index has no size
    return by_pieces(array, lambda a: to_storage(2 * from_storage(a, tensor.dtype), tensor.dtype), array.dtype)
