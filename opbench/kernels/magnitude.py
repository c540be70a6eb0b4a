"""Compute the scale of each output element's tolerance, from the size and the cancellation of its terms."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from opbench.kernels.tensors import Arrays, Tensor

PERTURBATION = 2.0**-20
"""Relative size of a perturbation: far above float64's rounding, and small enough for a linear response."""
TRIALS = 16
"""Number of perturbations; two equal terms cancel in all of them with probability 2**-16."""
FEW_TRIALS = 6
LARGE_WORK = 1e8
"""FLOPs and bytes of a problem from which only `FEW_TRIALS` are made."""
SIGNS = 4
PROBED_ELEMENTS = 2
MAX_FACTORS = 16
"""The response of a product to a relative perturbation is at most its number of factors; above this, terms cancel."""
SMALL_WORK, MAX_EXAMPLES = 1e6, 6
"""FLOPs and bytes up to which examples test whether the reference subtracts, and the number of these examples."""


class Problem(Protocol):
    """The methods of an `opbench.kernels.operator.Operator` that the scale depends on."""

    @property
    def axes(self) -> Mapping[str, int | str]: ...

    @property
    def storage(self) -> str: ...

    @classmethod
    def modes(cls) -> dict[str, str]: ...

    @classmethod
    def all_examples(cls, dtypes: Iterable[str]) -> Sequence[Problem]: ...

    def flops(self) -> int: ...

    def bytes(self) -> int: ...

    def input_tensors(self) -> list[Tensor]: ...

    def output_tensors(self) -> list[Tensor]: ...

    def make_inputs(self, seed: int) -> Arrays: ...

    def widened(self, inputs: Arrays) -> Arrays: ...

    def evaluated(self, wide: Arrays) -> Arrays: ...


def magnitudes(problem: Problem, wide: Arrays) -> Arrays:
    """Return the scale of each output element's tolerance for float64 inputs.

    If the reference only adds products, that is the reference of absolute values: the sum of the terms' sizes, as in
    Higham's bound of an inner product. If it subtracts, terms are larger than the result. The scale is then the largest
    of that value, of the result, and of its response to relative perturbations of all inputs with random signs. The
    response never exceeds the sum of the terms' sizes, so the scale allows nothing that rounding each input and term
    once could not explain.
    """
    largest = _absolute_inputs(problem, wide)
    if not reference_subtracts(problem):
        return largest
    with np.errstate(all="ignore"):
        reference = problem.evaluated(wide)
        trials = TRIALS if _work_of(problem) < LARGE_WORK else FEW_TRIALS
        for response in (_perturbed_change(problem, wide, reference, trial) for trial in range(trials)):
            largest = _elementwise_maximum(largest, response)
    return _elementwise_maximum(largest, reference)


def reference_subtracts(problem: Problem) -> bool:
    """Return whether an operator's reference subtracts, by evaluating small examples.

    The answer is True if a result is larger than the reference of absolute values, or responds to perturbations as
    if it were. The operator's small examples in the problem's modes run with random signs of inputs, and with
    perturbed inputs.
    """
    examples = type(problem).all_examples([problem.storage])
    same_modes = [p for p in examples if all(p.axes[mode] == problem.axes[mode] for mode in problem.modes())]
    small_examples = sorted((p for p in same_modes if _work_of(p) <= SMALL_WORK), key=_work_of)[-MAX_EXAMPLES:]
    return _any_subtracts(tuple(small_examples or sorted(same_modes, key=_work_of)[:1] or [problem]))


@functools.cache
def _any_subtracts(examples: tuple[Problem, ...]) -> bool:
    for problem in examples:
        wide = problem.widened(problem.make_inputs(0))
        absolute = _absolute_inputs(problem, wide)
        with np.errstate(all="ignore"):
            reference = problem.evaluated(wide)
            for trial in range(SIGNS):
                flipped = problem.evaluated(_perturbed_inputs(problem, wide, trial, 0.0, 1.0))
                response = _perturbed_change(problem, wide, reference, trial)
                for name, limit in absolute.items():
                    exceeds = (
                        np.maximum(_absolute_values(reference[name]), _absolute_values(flipped[name])) > 1.001 * limit
                    )
                    if np.any(exceeds) or np.any(response[name] > MAX_FACTORS * limit):
                        return True
    return False


@functools.cache
def estimated_terms(problem: Problem) -> int:
    """Estimate the number of terms of an output element: the mean number of input elements that it depends on.

    A few elements of each input are changed, one at a time, and the outputs that change are counted.
    """
    wide = problem.widened(problem.make_inputs(0))
    outputs = sum(t.elements for t in problem.output_tensors())
    count = 0.0
    with np.errstate(all="ignore"):
        reference = problem.evaluated(wide)
        for name in _real_inputs(problem):
            array = wide[name]
            indices = np.random.default_rng([*name.encode()]).integers(0, array.size, PROBED_ELEMENTS)
            for index in indices:
                perturbed = array.copy()
                perturbed.reshape(-1)[index] += 0.5
                perturbed_outputs = problem.evaluated({**wide, name: perturbed})
                changed = sum(int(np.count_nonzero(perturbed_outputs[key] != reference[key])) for key in reference)
                count += array.size * changed / outputs / PROBED_ELEMENTS
    return max(1, round(count))


def _work_of(problem: Problem) -> int:
    return problem.flops() + problem.bytes()


def _absolute_inputs(problem: Problem, wide: Arrays) -> Arrays:
    with np.errstate(all="ignore"):
        outputs = problem.evaluated({**wide, **{name: np.abs(wide[name]) for name in _real_inputs(problem)}})
    return {name: _absolute_values(array) for name, array in outputs.items()}


def _perturbed_change(problem: Problem, wide: Arrays, reference: Arrays, trial: int) -> Arrays:
    """Perturb every input with random signs, and return the change of the outputs per relative perturbation."""
    perturbed = problem.evaluated(_perturbed_inputs(problem, wide, trial, 1.0, PERTURBATION))
    return {name: _absolute_values(perturbed[name] - reference[name]) / PERTURBATION for name in reference}


def _perturbed_inputs(problem: Problem, wide: Arrays, trial: int, base: float, amplitude: float) -> Arrays:
    """Return each input times `base` plus or minus `amplitude`, with random signs; keep labels and indices."""
    return {
        **wide,
        **{
            name: wide[name] * (base + amplitude * _random_signs(name, wide[name], trial))
            for name in _real_inputs(problem)
        },
    }


def _real_inputs(problem: Problem) -> list[str]:
    """Return the names of the floating-point inputs."""
    return [t.name for t in problem.input_tensors() if not t.is_integer]


def _random_signs(name: str, array: np.ndarray, seed: int) -> np.ndarray:
    """Return random +1 and -1; equal tensor names and numbers give equal signs."""
    rng = np.random.default_rng([seed, *name.encode()])
    signs: np.ndarray = np.asarray(rng.integers(0, 1, array.shape, np.int8, endpoint=True), like=array) * 2.0 - 1.0
    return signs


def _absolute_values(array: np.ndarray) -> np.ndarray:
    """Return absolute values; 0 for values that became undefined because an input was perturbed."""
    absolute: np.ndarray = np.nan_to_num(np.abs(array), nan=0.0, posinf=0.0)
    return absolute


def _elementwise_maximum(arrays: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Arrays:
    return {name: np.maximum(array, np.abs(other[name])) for name, array in arrays.items()}
