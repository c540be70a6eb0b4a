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

SMALL_SLICE_COUNT, CHOSEN_SLICES = 5, (0, 2, 3)
"""The number of slices of a small problem, and the slices that a smaller problem consists of.

If slices are independent, both problems have the same results for these slices."""
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
    slice_dimensions: Mapping[str, tuple[int, int]]
    """For each tensor with the axis: its dimension, and the number of indices in that dimension per slice."""

    @property
    def count(self) -> int:
        """Return the number of slices."""
        return int(self.problem.axes[self.axis])

    def with_slice_count(self, count: int) -> Operator:
        """Return the smaller problem that consists of `count` slices."""
        return _with_axis_size(self.problem, self.axis, count)

    def _split_axis(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return a view of a tensor in which the sliced dimension is split into slices and indices within a slice."""
        dimension, elements = self.slice_dimensions[name]
        return array.reshape(*array.shape[:dimension], -1, elements, *array.shape[dimension + 1 :])

    def take(self, name: str, array: np.ndarray, slice_indices: np.ndarray) -> np.ndarray:
        """Return the part of a tensor that belongs to the slices with these indices."""
        if name not in self.slice_dimensions:
            return np.array(array)
        dimension, elements = self.slice_dimensions[name]
        slices = np.take(self._split_axis(name, array), slice_indices, axis=dimension)
        return slices.reshape(*array.shape[:dimension], len(slice_indices) * elements, *array.shape[dimension + 1 :])

    def put(self, name: str, array: np.ndarray, slice_indices: np.ndarray, values: np.ndarray) -> None:
        """Copy `values`, the part of a tensor that belongs to some slices, to its place in the whole tensor."""
        if name not in self.slice_dimensions:
            array[...] = values
        else:
            dimension = self.slice_dimensions[name][0]
            np.moveaxis(self._split_axis(name, array), dimension, 0)[slice_indices] = np.moveaxis(
                self._split_axis(name, values), dimension, 0
            )

    def slice_numbers_of(self, name: str, shape: tuple[int, ...], flat_indices: np.ndarray) -> np.ndarray:
        """Return the number of the slice to which each element belongs; elements are given by their flat indices."""
        dimension, elements = self.slice_dimensions[name]
        result: np.ndarray = flat_indices // (prod(shape[dimension + 1 :]) * elements) % self.count
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
    axes_by_size = sorted(
        (axis for axis, size in problem.axes.items() if isinstance(size, int)), key=lambda a: -_axis_size(problem, a)
    )
    for axis in axes_by_size[:2]:
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
        small_problem, smaller_problem = (
            _with_axis_size(problem, axis, SMALL_SLICE_COUNT),
            _with_axis_size(problem, axis, len(CHOSEN_SLICES)),
        )
        tensors = [*small_problem.input_tensors(), *small_problem.output_tensors()]
        if small_problem.flops() + sum(t.nbytes for t in tensors) > MAX_WORK:
            return None
        slice_dimensions = {}
        for tensor, smaller_tensor in zip(
            tensors, [*smaller_problem.input_tensors(), *smaller_problem.output_tensors()], strict=True
        ):
            grown_dimensions = [
                d for d, (a, b) in enumerate(zip(tensor.shape, smaller_tensor.shape, strict=True)) if a != b
            ]
            if len(grown_dimensions) > 1 or any(
                tensor.shape[d] * len(CHOSEN_SLICES) != smaller_tensor.shape[d] * SMALL_SLICE_COUNT
                for d in grown_dimensions
            ):
                return None
            if grown_dimensions:
                slice_dimensions[tensor.name] = (
                    grown_dimensions[0],
                    tensor.shape[grown_dimensions[0]] // SMALL_SLICE_COUNT,
                )
        if not all(name in slice_dimensions for name in problem.outputs):
            return None
        huge_tensors = [*problem.input_tensors(), *problem.output_tensors()]
        if any(
            a.shape != b.shape for a, b in zip(huge_tensors, tensors, strict=True) if a.name not in slice_dimensions
        ):
            return None  # a tensor with a number for many slices, such as a scale for each 128 columns
        slices = ProblemSlices(problem, axis, slice_dimensions)
        return (
            slices
            if all(
                _are_slices_independent(slices, small_problem, smaller_problem, SEED + draw)
                for draw in range(INDEPENDENCE_TESTS)
            )
            else None
        )
    except (OpbenchError, ArithmeticError, ValueError, IndexError):  # a size that the operator rejects
        return None


def _are_slices_independent(
    slices: ProblemSlices, small_problem: Operator, smaller_problem: Operator, seed: int
) -> bool:
    """Return whether the slices of a small problem have the same results alone as in the whole problem."""
    inputs, slice_indices = small_problem.make_inputs(seed), np.array(CHOSEN_SLICES)
    slice_inputs = {name: slices.take(name, array, slice_indices) for name, array in inputs.items()}
    full_outputs, slice_outputs = (
        small_problem.reference_outputs(inputs),
        smaller_problem.reference_outputs(slice_inputs),
    )
    return all(
        np.allclose(slices.take(n, full_outputs[n], slice_indices), a, 1e-9, 1e-12) for n, a in slice_outputs.items()
    )


def written_slices(case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory]) -> np.ndarray | str:
    """Return the slices with written elements, at most as many as fit into one judgement, or why there are none."""
    slice_numbers: list[np.ndarray] = []
    for tensor in case.problem.output_tensors():
        buffer = buffers[tensor.name]
        pages = buffer.written_pages()
        if pages is None:
            return "this system does not report which memory pages were written"
        flat_indices = _elements_on_pages(
            _sample_indices(pages, MAX_PAGES), tensor.elements, mmap.PAGESIZE // buffer.dtype.itemsize
        )
        if tensor.name not in case.updates:
            flat_indices = flat_indices[_as_unsigned(buffer.content.reshape(-1)[flat_indices]) != _poison_bits(buffer)]
        slice_numbers.append(slices.slice_numbers_of(tensor.name, tensor.shape, flat_indices))
    sample = slices.with_slice_count(len(CHOSEN_SLICES))
    tensors = [*sample.input_tensors(), *sample.output_tensors()]
    cost_per_slice = (
        sum(t.elements for t in tensors if t.name in slices.slice_dimensions) + sample.flops() / 64
    ) / len(CHOSEN_SLICES)
    slice_indices = _sample_indices(
        np.unique(np.concatenate(slice_numbers)), max(1, min(MAX_SLICES, int(MAX_ELEMENTS / cost_per_slice)))
    )
    return slice_indices if slice_indices.size else "nothing was written"


def load_small_inputs(problem: Operator, buffers: Mapping[str, SparseMemory]) -> None:
    """Fill the inputs whose size does not depend on the huge axis, such as a count or positions, with valid values.

    Zero is not always valid: a step counts from 1.
    """
    axis = max(problem.axes, key=lambda name: _axis_size(problem, name))
    try:
        small = _with_axis_size(problem, axis, SMALL_SLICE_COUNT)
        if sum(t.elements for t in small.input_tensors()) > MAX_ELEMENTS:
            return
        content = small.make_inputs(SEED)
    except (OpbenchError, ArithmeticError, ValueError):  # a size that the operator rejects
        return
    for tensor in problem.input_tensors():
        if content[tensor.name].shape == tensor.shape:
            buffers[tensor.name].content[...] = content[tensor.name]


def load(case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory], slice_indices: np.ndarray) -> None:
    """Write the inputs of the slices to their places in the huge tensors, and poison the outputs."""
    slice_inputs = slices.with_slice_count(len(slice_indices)).make_inputs(SEED)
    for name, input_name in slice_inputs.items():
        slices.put(name, buffers[name].content, slice_indices, input_name)
    for name in case.problem.outputs:
        old = case.updates.get(name)
        if old is None:
            buffers[name].poison()
        else:
            buffers[name].clear()
            slices.put(name, buffers[name].content, slice_indices, slice_inputs[old])


def judge_slices(
    case: Case, slices: ProblemSlices, buffers: Mapping[str, SparseMemory], slice_indices: np.ndarray
) -> SampleVerdict:
    """Return the verdict on the outputs that were written in these slices."""
    problem = slices.with_slice_count(len(slice_indices))
    inputs = problem.make_inputs(SEED)
    tolerance = problem.allowance(case.variant.precision)
    reference = problem.reference_outputs(inputs)
    magnitude = None if tolerance.exact else problem.magnitude_outputs(inputs)
    count, error = 0, 0.0
    for tensor in problem.output_tensors():
        name = tensor.name
        written = slices.take(name, buffers[name].content, slice_indices)
        updated_input = case.updates.get(name)
        is_unwritten = _as_unsigned(written) == (
            _as_unsigned(inputs[updated_input]) if updated_input else _poison_bits(buffers[name])
        )
        written[is_unwritten] = to_storage(reference[name][is_unwritten], tensor.dtype)
        scale = magnitude[name] if magnitude else None
        judgement = judge(name, tensor.dtype, written, reference[name], scale, tolerance)
        count, error = count + int(np.count_nonzero(~is_unwritten)), max(error, judgement.error)
        if judgement.mismatch is not None:
            return SampleVerdict(
                count, error, tolerance.elementwise, _mismatch_sentence(slices, judgement, name, slice_indices)
            )
    return SampleVerdict(count, error, tolerance.elementwise)


def _mismatch_sentence(slices: ProblemSlices, judgement: Judgement, name: str, slice_indices: np.ndarray) -> str:
    """Describe a mismatch with its index in the huge problem, in one sentence."""
    mismatch = judgement.mismatch
    assert mismatch is not None
    if mismatch.index is None:
        return mismatch.sentence()
    dimension, elements = slices.slice_dimensions[name]
    index = list(mismatch.index)
    index[dimension] = int(slice_indices[index[dimension] // elements]) * elements + index[dimension] % elements
    return replace(mismatch, index=tuple(index)).sentence()


def _poison_bits(buffer: SparseMemory) -> np.ndarray:
    """Return the bits that an element has if it was never written."""
    return np.array(~np.array(0, f"u{buffer.dtype.itemsize}"))


def _as_unsigned(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def _elements_on_pages(pages: np.ndarray, elements: int, page_elements: int) -> np.ndarray:
    """Return the flat indices of the elements that lie on these memory pages."""
    flat_indices = (pages.astype(np.int64)[:, None] * page_elements + np.arange(page_elements)).reshape(-1)
    result: np.ndarray = flat_indices[flat_indices < elements]
    return result


def _sample_indices(slice_numbers_of: np.ndarray, max_count: int) -> np.ndarray:
    """Return at most `max_count` of the numbers, in ascending order: the first, the last, and random ones between."""
    if slice_numbers_of.size <= max_count:
        return slice_numbers_of
    fixed_positions = [*range(min(2, max_count)), *range(slice_numbers_of.size - max_count // 4, slice_numbers_of.size)]
    random_positions = np.random.default_rng(SEED).choice(
        slice_numbers_of.size, max_count - len(fixed_positions), replace=False
    )
    sample: np.ndarray = slice_numbers_of[np.unique([*fixed_positions, *random_positions])]
    return sample
