"""The scale of each output's allowance, found by running the reference: what its terms are, and how they cancel."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from opbench.kernels.tensors import Arrays, Tensor

STEP = 2.0**-20
"""Relative size of a perturbation: far above float64's rounding, far below what would bend the reference."""
TRIALS = 16
"""Perturbations of an input that cancels: that two equal terms hide in all of them has a chance of 2**-16."""
FEW_TRIALS = 6
FEW_FROM = 1e8
"""FLOPs and bytes of a problem from which `FEW_TRIALS` must do."""
SIGNS = 4
PROBES = 2
STEEP = 16
"""A product of factors answers a relative perturbation at most as often as it has factors; beyond this terms cancel."""
SMALL, ASKED = 1e6, 6
"""FLOPs and bytes up to which an example is run to find out whether the reference subtracts, and of how many."""


class Problem(Protocol):
    """What the scale depends on of an `opbench.kernels.operator.Operator`, which has these under the same names."""

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
    """The scale of each output element's allowance for float64 inputs.

    Where the reference only adds up products, that is the reference on absolute values: the sum of its terms' sizes,
    which Higham's bound of an inner product asks for. Where it subtracts, terms are larger than what is left of them;
    the scale is then the largest of that value, of the result, and of what relative perturbations of all inputs with
    random signs do to it. The last is never above the sum of the terms' sizes, so nothing is allowed that rounding
    each input and term once could not explain.
    """
    found = _absolute(problem, wide)
    if not subtracts(problem):
        return found
    with np.errstate(all="ignore"):
        reference = problem.evaluated(wide)
        trials = TRIALS if _work(problem) < FEW_FROM else FEW_TRIALS
        for answer in (_answer(problem, wide, reference, number) for number in range(trials)):
            found = _larger(found, answer)
    return _larger(found, reference)


def subtracts(problem: Problem) -> bool:
    """Whether a reference's result can be larger than on absolute values, or answers perturbations as if it were.

    Asked of the operator's small examples in the problem's modes: signs of inputs are flipped at random, and inputs are
    perturbed.
    """
    examples = type(problem).all_examples([problem.storage])
    alike = [p for p in examples if all(p.axes[mode] == problem.axes[mode] for mode in problem.modes())]
    small = sorted((p for p in alike if _work(p) <= SMALL), key=_work)[-ASKED:]
    return _any_subtracts(tuple(small or sorted(alike, key=_work)[:1] or [problem]))


@functools.cache
def _any_subtracts(examples: tuple[Problem, ...]) -> bool:
    for problem in examples:
        wide = problem.widened(problem.make_inputs(0))
        absolute = _absolute(problem, wide)
        with np.errstate(all="ignore"):
            reference = problem.evaluated(wide)
            for number in range(SIGNS):
                flipped = problem.evaluated(_scaled(problem, wide, number, 0.0, 1.0))
                answer = _answer(problem, wide, reference, number)
                for name, limit in absolute.items():
                    beyond = np.maximum(_sizes(reference[name]), _sizes(flipped[name])) > 1.001 * limit
                    if np.any(beyond) or np.any(answer[name] > STEEP * limit):
                        return True
    return False


@functools.cache
def terms(problem: Problem) -> int:
    """How many input elements an output element depends on, in the mean: so many terms may have been added up.

    A few elements of each input are changed, one at a time, and the outputs that move are counted.
    """
    wide = problem.widened(problem.make_inputs(0))
    outputs = sum(t.elements for t in problem.output_tensors())
    found = 0.0
    with np.errstate(all="ignore"):
        reference = problem.evaluated(wide)
        for name in _reals(problem):
            array = wide[name]
            places = np.random.default_rng([*name.encode()]).integers(0, array.size, PROBES)
            for place in places:
                other = array.copy()
                other.reshape(-1)[place] += 0.5
                moved = problem.evaluated({**wide, name: other})
                changed = sum(int(np.count_nonzero(moved[key] != reference[key])) for key in reference)
                found += array.size * changed / outputs / PROBES
    return max(1, round(found))


def _work(problem: Problem) -> int:
    return problem.flops() + problem.bytes()


def _absolute(problem: Problem, wide: Arrays) -> Arrays:
    with np.errstate(all="ignore"):
        found = problem.evaluated({**wide, **{name: np.abs(wide[name]) for name in _reals(problem)}})
    return {name: _sizes(array) for name, array in found.items()}


def _answer(problem: Problem, wide: Arrays, reference: Arrays, number: int) -> Arrays:
    """How much outputs change per relative perturbation of every input, with random signs."""
    moved = problem.evaluated(_scaled(problem, wide, number, 1.0, STEP))
    return {name: _sizes(moved[name] - reference[name]) / STEP for name in reference}


def _scaled(problem: Problem, wide: Arrays, number: int, kept: float, step: float) -> Arrays:
    """Every input times `kept` plus or minus `step`, with random signs; labels and indices stay what they are."""
    return {**wide, **{name: wide[name] * (kept + step * _signs(name, wide[name], number)) for name in _reals(problem)}}


def _reals(problem: Problem) -> list[str]:
    """The inputs that rounding changes."""
    return [t.name for t in problem.input_tensors() if not t.is_integer]


def _signs(name: str, array: np.ndarray, number: int) -> np.ndarray:
    """+1 and -1 at random, the same for the same tensor and number."""
    rng = np.random.default_rng([number, *name.encode()])
    signs: np.ndarray = np.asarray(rng.integers(0, 1, array.shape, np.int8, endpoint=True), like=array) * 2.0 - 1.0
    return signs


def _sizes(array: np.ndarray) -> np.ndarray:
    """Absolute values; 0 where a perturbed input left the reference's domain."""
    sizes: np.ndarray = np.nan_to_num(np.abs(array), nan=0.0, posinf=0.0)
    return sizes


def _larger(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Arrays:
    return {name: np.maximum(array, np.abs(other[name])) for name, array in one.items()}
