"""Judges what a few blocks of a huge problem wrote, against the reference of only the slices that they wrote."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from opbench.backend.base import SparseMemory
from opbench.checking.verdict import Judgement, judge
from opbench.errors import OpbenchError
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import to_storage

SAMPLE, CHOSEN = 5, (0, 2, 3)
"""Number of slices of a small problem, and the slices of a still smaller one: if slices are independent, both agree."""
INDEPENDENCE_TESTS = 8
"""Number of random inputs for which both must agree."""
MAX_WORK = 1e8
"""FLOPs and bytes of a small problem above which one slice takes too long."""
MAX_ELEMENTS = 1 << 18
"""Most elements of all tensors of the slices that are judged together."""
MAX_SLICES = 4096
MAX_PAGES = 4096
"""Most pages of an output that are searched for written elements."""
SEED = 20260


@dataclass(frozen=True)
class ProblemSlices:
    """A problem split into independent slices along one axis; some of the slices form a smaller problem."""

    problem: Operator
    axis: str
    places: Mapping[str, tuple[int, int]]
    """For each tensor with the axis: its dimension, and the number of indices in that dimension per slice."""

    @property
    def count(self) -> int:
        """Return the number of slices."""
        return int(self.problem.axes[self.axis])

    def some(self, count: int) -> Operator:
        """Return the smaller problem that consists of `count` slices."""
        return _with_axis_size(self.problem, self.axis, count)

    def _split_axis(self, name: str, array: np.ndarray) -> np.ndarray:
        place, elements = self.places[name]
        return array.reshape(*array.shape[:place], -1, elements, *array.shape[place + 1 :])

    def taken(self, name: str, array: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Return the part of a tensor that belongs to the slices with the numbers `which`."""
        if name not in self.places:
            return np.array(array)
        place, elements = self.places[name]
        slices = np.take(self._split_axis(name, array), which, axis=place)
        return slices.reshape(*array.shape[:place], len(which) * elements, *array.shape[place + 1 :])

    def put(self, name: str, array: np.ndarray, which: np.ndarray, values: np.ndarray) -> None:
        """Copy the part of a tensor that belongs to the slices `which` to its place in the whole tensor."""
        if name not in self.places:
            array[...] = values
        else:
            place = self.places[name][0]
            np.moveaxis(self._split_axis(name, array), place, 0)[which] = np.moveaxis(
                self._split_axis(name, values), place, 0
            )

    def numbers(self, name: str, shape: tuple[int, ...], flat: np.ndarray) -> np.ndarray:
        """Return the number of the slice that each element belongs to; elements are given by their flat index."""
        place, elements = self.places[name]
        result: np.ndarray = flat // (prod(shape[place + 1 :]) * elements) % self.count
        return result


@dataclass(frozen=True)
class SampleVerdict:
    """The verdict on the elements that a sample of blocks wrote."""

    count: int
    error: float = 0.0
    allowed: float = 0.0
    mismatch: str = ""


def slices_of(case: Case, sm_count: int) -> ProblemSlices | str:
    """Return the slices in which the outputs of a case can be judged, or the reason why they cannot be judged."""
    launches = case.launches(sm_count)
    if len([launch for launch in launches if launch.kernel]) > 1 or case.workspace(sm_count):
        return "what a launch needs of another one was not computed"
    if {launch.zero for launch in launches} & set(case.problem.outputs):
        return "blocks add to what others wrote"
    problem = case.problem
    large = sorted(
        (axis for axis, size in problem.axes.items() if isinstance(size, int)), key=lambda a: -_axis_size(problem, a)
    )
    for axis in large[:2]:
        if (slices := _independent_slices(problem, axis)) is not None:
            return slices
    return "its slices are not independent of each other"


def _axis_size(problem: Operator, axis: str) -> int:
    size = problem.axes[axis]
    return size if isinstance(size, int) else 0


def _with_axis_size(problem: Operator, axis: str, size: int) -> Operator:
    return type(problem).from_axes({**problem.axes, axis: size})


def _independent_slices(problem: Operator, axis: str) -> ProblemSlices | None:
    """Return the problem's slices along an axis; None unless a small problem shows that they are independent."""
    try:
        whole, part = _with_axis_size(problem, axis, SAMPLE), _with_axis_size(problem, axis, len(CHOSEN))
        tensors = [*whole.input_tensors(), *whole.output_tensors()]
        if whole.flops() + sum(t.nbytes for t in tensors) > MAX_WORK:
            return None
        places = {}
        for ours, theirs in zip(tensors, [*part.input_tensors(), *part.output_tensors()], strict=True):
            grown = [d for d, (a, b) in enumerate(zip(ours.shape, theirs.shape, strict=True)) if a != b]
            if len(grown) > 1 or any(ours.shape[d] * len(CHOSEN) != theirs.shape[d] * SAMPLE for d in grown):
                return None
            if grown:
                places[ours.name] = (grown[0], ours.shape[grown[0]] // SAMPLE)
        if not all(name in places for name in problem.outputs):
            return None
        huge = [*problem.input_tensors(), *problem.output_tensors()]
        if any(a.shape != b.shape for a, b in zip(huge, tensors, strict=True) if a.name not in places):
            return None  # a tensor with a number for many slices, such as a scale for each 128 columns
        slices = ProblemSlices(problem, axis, places)
        return (
            slices
            if all(_are_slices_independent(slices, whole, part, SEED + draw) for draw in range(INDEPENDENCE_TESTS))
            else None
        )
    except (OpbenchError, ArithmeticError, ValueError, IndexError):  # a size that the operator rejects
        return None


def _are_slices_independent(slices: ProblemSlices, whole: Operator, part: Operator, seed: int) -> bool:
    """Return whether the slices of a small problem have the same results alone as in the whole problem."""
    content, which = whole.make_inputs(seed), np.array(CHOSEN)
    slice_inputs = {name: slices.taken(name, array, which) for name, array in content.items()}
    full, alone = whole.reference_outputs(content), part.reference_outputs(slice_inputs)
    return all(np.allclose(slices.taken(n, full[n], which), a, 1e-9, 1e-12) for n, a in alone.items())


def written_slices(case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory]) -> np.ndarray | str:
    """Return the slices with written elements, at most as many as fit into one judgement, or why there are none."""
    slice_numbers: list[np.ndarray] = []
    for tensor in case.problem.output_tensors():
        buffer = buffers[tensor.name]
        pages = buffer.written_pages()
        if pages is None:
            return "this system does not report which memory pages were written"
        flat = _elements_on_pages(
            _sample_indices(pages, MAX_PAGES), tensor.elements, mmap.PAGESIZE // buffer.dtype.itemsize
        )
        if tensor.name not in case.updates:
            flat = flat[_as_unsigned(buffer.content.reshape(-1)[flat]) != _poison_bits(buffer)]
        slice_numbers.append(slices.numbers(tensor.name, tensor.shape, flat))
    sample = slices.some(len(CHOSEN))
    tensors = [*sample.input_tensors(), *sample.output_tensors()]
    cost_per_slice = (sum(t.elements for t in tensors if t.name in slices.places) + sample.flops() / 64) / len(CHOSEN)
    which = _sample_indices(
        np.unique(np.concatenate(slice_numbers)), max(1, min(MAX_SLICES, int(MAX_ELEMENTS / cost_per_slice)))
    )
    return which if which.size else "nothing was written"


def load_small_inputs(problem: Operator, buffers: Mapping[str, SparseMemory]) -> None:
    """Fill the inputs whose size does not depend on the huge axis, such as a count or positions, with valid values.

    Zero is not always valid: a step counts from 1.
    """
    axis = max(problem.axes, key=lambda name: _axis_size(problem, name))
    try:
        small = _with_axis_size(problem, axis, SAMPLE)
        if sum(t.elements for t in small.input_tensors()) > MAX_ELEMENTS:
            return
        content = small.make_inputs(SEED)
    except (OpbenchError, ArithmeticError, ValueError):  # a size that the operator rejects
        return
    for tensor in problem.input_tensors():
        if content[tensor.name].shape == tensor.shape:
            buffers[tensor.name].content[...] = content[tensor.name]


def load(case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory], which: np.ndarray) -> None:
    """Write the inputs of the slices to their places in the huge tensors, and poison the outputs."""
    slice_inputs = slices.some(len(which)).make_inputs(SEED)
    for name, input_name in slice_inputs.items():
        slices.put(name, buffers[name].content, which, input_name)
    for name in case.problem.outputs:
        old = case.updates.get(name)
        if old is None:
            buffers[name].poison()
        else:
            buffers[name].clear()
            slices.put(name, buffers[name].content, which, slice_inputs[old])


def judge_slices(
    case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory], which: np.ndarray
) -> SampleVerdict:
    """Return the verdict on the outputs that were written in these slices."""
    problem = slices.some(len(which))
    inputs = problem.make_inputs(SEED)
    tolerance = problem.allowance(case.variant.precision)
    reference = problem.reference_outputs(inputs)
    magnitude = None if tolerance.exact else problem.magnitude_outputs(inputs)
    count, error = 0, 0.0
    for tensor in problem.output_tensors():
        name = tensor.name
        got = slices.taken(name, buffers[name].content, which)
        old = case.updates.get(name)
        left = _as_unsigned(got) == (_as_unsigned(inputs[old]) if old else _poison_bits(buffers[name]))
        got[left] = to_storage(reference[name][left], tensor.dtype)
        scale = magnitude[name] if magnitude else None
        judgement = judge(name, tensor.dtype, got, reference[name], scale, tolerance)
        count, error = count + int(np.count_nonzero(~left)), max(error, judgement.error)
        if judgement.mismatch is not None:
            return SampleVerdict(
                count, error, tolerance.elementwise, _mismatch_sentence(slices, judgement, name, which)
            )
    return SampleVerdict(count, error, tolerance.elementwise)


def _mismatch_sentence(slices: ProblemSlices, judgement: Judgement, name: str, which: np.ndarray) -> str:
    """Describe a mismatch with its index in the huge problem, in one sentence."""
    mismatch = judgement.mismatch
    assert mismatch is not None
    if mismatch.index is None:
        return mismatch.sentence()
    place, elements = slices.places[name]
    at = list(mismatch.index)
    at[place] = int(which[at[place] // elements]) * elements + at[place] % elements
    return replace(mismatch, index=tuple(at)).sentence()


def _poison_bits(buffer: SparseMemory) -> np.ndarray:
    """Return the bits that an element has if it was never written."""
    return np.array(~np.array(0, f"u{buffer.dtype.itemsize}"))


def _as_unsigned(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def _elements_on_pages(pages: np.ndarray, elements: int, page_elements: int) -> np.ndarray:
    """Return the flat indices of the elements that lie on these memory pages."""
    flat = (pages.astype(np.int64)[:, None] * page_elements + np.arange(page_elements)).reshape(-1)
    result: np.ndarray = flat[flat < elements]
    return result


def _sample_indices(numbers: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the numbers in ascending order: the first, the last, and random ones between."""
    if numbers.size <= most:
        return numbers
    ends = [*range(min(2, most)), *range(numbers.size - most // 4, numbers.size)]
    drawn = np.random.default_rng(SEED).choice(numbers.size, most - len(ends), replace=False)
    sample: np.ndarray = numbers[np.unique([*ends, *drawn])]
    return sample
