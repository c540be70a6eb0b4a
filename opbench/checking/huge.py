"""Check problems that exceed 32-bit indices: a few blocks run on sparse memory, and their outputs are judged."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from opbench.backend.base import SparseMemory, TracingBackend
from opbench.backend.findings import headline
from opbench.checking.huge_values import ProblemSlices, judge_slices, load, load_small_inputs, slices_of, written_slices
from opbench.errors import LaunchError
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import emulated_work
from opbench.results.result import RecordedLaunch, Verdict

HUGE_ELEMENTS = 1 << 31
"""Number of elements of a tensor from which a problem is huge."""
MAX_INT = (1 << 31) - 1
LONG_AXIS_SIZES = ((1 << 16) + 3, (1 << 16) - 1, (1 << 15) + 3)
"""Sizes of an axis beyond 16 bits; the limit of blocks in a grid's y and z dimensions; and beyond a `short`."""
MAX_FILLED_BYTES = 1 << 28
"""Most bytes of workspaces that are filled with other contents to confirm a fault."""
OTHER_WORDS = (0xFFFFFFFF, 1)
"""Contents of workspaces with which a fault must repeat, as with 0: they suit complements, and numbers from 1 on."""
MAX_LONG_WORK = 4e6
"""FLOPs and elements up to which a problem with a long axis is checked."""


def is_huge(problem: Operator) -> bool:
    """Return whether a tensor has more elements than an `int` can count.

    For a vector, almost as many are enough: its length is an axis, which must itself fit into an `int`.
    """
    tensors = [*problem.input_tensors(), *problem.output_tensors()]
    return any(
        t.elements >= HUGE_ELEMENTS or (len(t.shape) == 1 and t.elements >= MAX_INT - HUGE_ELEMENTS // 64)
        for t in tensors
    )


def huge_problems(
    examples: list[Operator], fits: Callable[[Operator], bool] = lambda problem: True
) -> Iterator[Operator]:
    """Yield huge problems: the largest examples, with one axis enlarged until a tensor is huge.

    Modes are combined so that any two values occur together. An axis qualifies if its tensors grow with it but
    the work per output does not, such as batches, rows or images.
    """
    seen_modes, covered_pairs = set(), set[tuple[str, ...]]()
    for problem in sorted(examples, key=lambda p: -p.bytes()):
        modes = tuple(f"{name}={value}" for name, value in problem.axes.items() if isinstance(value, str))
        if modes in seen_modes:
            continue
        seen_modes.add(modes)
        for axis, size in problem.axes.items():
            groups = itertools.chain([()], itertools.combinations(modes, 1), itertools.combinations(modes, 2))
            mode_pairs = {(axis, *group) for group in groups}
            if (
                isinstance(size, int)
                and not mode_pairs <= covered_pairs
                and (huge_problem := _huge_along_axis(problem, axis))
                and fits(huge_problem)
            ):
                covered_pairs |= mode_pairs
                yield huge_problem


def long_problems(examples: list[Operator]) -> Iterator[list[Operator]]:
    """Yield small examples with one axis longer than 65535, for each axis and each value of each mode.

    Each item is a list with the longest problem first; a variant takes the first one that it supports with few threads.
    """
    covered: set[tuple[str, str]] = set()
    for problem in sorted(examples, key=emulated_work):
        modes = [f"{name}={value}" for name, value in problem.axes.items() if isinstance(value, str)]
        for axis, size in problem.axes.items():
            uncovered = {(axis, mode) for mode in modes or [""]} - covered
            if not isinstance(size, int) or not uncovered:
                continue
            problems = (_with_axis_size(problem, axis, size) for size in LONG_AXIS_SIZES)
            if affordable_problems := [
                long_problem
                for long_problem in problems
                if long_problem
                and emulated_work(long_problem) <= MAX_LONG_WORK
                and long_problem.bytes() > problem.bytes()
            ]:
                covered |= uncovered
                yield affordable_problems


def _with_axis_size(problem: Operator, axis: str, size: int) -> Operator | None:
    """Return the problem with another size of an axis; None if the operator rejects the size."""
    try:
        return type(problem).from_axes({**problem.axes, axis: size})
    except Exception:
        return None


def _huge_along_axis(problem: Operator, axis: str) -> Operator | None:
    """Return the problem with an axis so long that a tensor is huge; None if the axis does not allow it."""

    def with_size(size: int) -> Operator | None:
        return _with_axis_size(problem, axis, size)

    def largest_tensor(operator: Operator) -> int:
        return max(t.elements for t in [*operator.input_tensors(), *operator.output_tensors()])

    small_problem, doubled_problem = with_size(1 << 20), with_size(1 << 21)
    if small_problem is None or doubled_problem is None or doubled_problem.reduction() != small_problem.reduction():
        return None
    elements_per_index = (largest_tensor(doubled_problem) - largest_tensor(small_problem)) >> 20
    if elements_per_index < 1:
        return None
    size = min(HUGE_ELEMENTS // elements_per_index + 3, MAX_INT - 7)
    problem_of_size = with_size(size)
    return problem_of_size if problem_of_size is not None and is_huge(problem_of_size) else None


def check_huge(backend: TracingBackend, case: Case, sm_count: int) -> Verdict:
    """Run some blocks of a huge problem and return the verdict on them.

    The check finds accesses out of bounds and overflows of `int`. Where slices are independent, it also
    compares the blocks' outputs with the reference: a first run finds the slices that the blocks write, and a
    second run has inputs in them.
    """
    slices = slices_of(case, sm_count)
    buffers: dict[str, SparseMemory] = {}
    launches = case.launches(sm_count)
    try:
        for tensor in (*case.problem.input_tensors(), *case.problem.output_tensors(), *case.workspace(sm_count)):
            buffers[tensor.name] = backend.allocate_sparse(tensor.name, tensor.shape, tensor.dtype)
            if isinstance(slices, str) or tensor.name not in case.problem.outputs or tensor.name in case.updates:
                buffers[tensor.name].clear()
        load_small_inputs(case.problem, buffers)
        verdict, _ = _run(backend, case, launches, buffers)
        if not verdict.right or isinstance(slices, str):
            return _note_sampled_blocks(verdict, slices)
        slice_indices = written_slices(case, slices, buffers)
        if isinstance(slice_indices, str):
            return _note_sampled_blocks(verdict, slice_indices)
        skip_blocks = 0
        for _ in range(2):
            load(case, slices, buffers, slice_indices)
            verdict, unfinished = _run(backend, case, launches, buffers, skip_blocks)
            if not verdict.right:
                return verdict
            sample_verdict = judge_slices(case, slices, buffers, slice_indices)
            if not sample_verdict.mismatch or not unfinished:
                break
            skip_blocks = unfinished  # a block that was cut short may have written only part of a sum
        if not sample_verdict.count or (sample_verdict.mismatch and unfinished):
            return _note_sampled_blocks(verdict, "no block finished within the time limit")
        sample_text = f"a sample of blocks, {sample_verdict.count} elements judged"
        return replace(
            verdict,
            right=not sample_verdict.mismatch,
            reason=sample_verdict.mismatch,
            worst_error=sample_verdict.error,
            allowed_error=sample_verdict.allowed,
            integers=sample_text,
        )
    finally:
        backend.free(buffers)


def _note_sampled_blocks(verdict: Verdict, reason: ProblemSlices | str) -> Verdict:
    """Add a note to a right verdict: only a sample of blocks was checked for bounds; `reason` says why."""
    sample_text = f"a sample of blocks, for where they reach only: {reason}"
    return replace(verdict, integers=sample_text) if verdict.right else verdict


def _run(
    backend: TracingBackend,
    case: Case,
    launches: Sequence[KernelLaunch],
    buffers: dict[str, SparseMemory],
    skip_blocks: int = 0,
) -> tuple[Verdict, int]:
    """Return the verdict on memory accesses, and a bit mask of the blocks that were cut short."""
    trace_sample = functools.partial(backend.trace_sample, case.request(), launches, buffers, skip_blocks)
    try:
        trace = trace_sample()
        errors = [finding for finding in trace.findings if not finding.hint]
        # A later launch may take an index from a workspace element whose block did not run: only a fault that also
        # occurs with other contents there is one of the kernel.
        workspaces = _workspaces_to_fill(case, launches, buffers)
        for word in OTHER_WORDS:
            if not (errors and workspaces):
                break
            for content in workspaces:
                content.view(np.uint32)[...] = word
            trace = trace_sample()
            repeated = {(f.kind, f.file, f.line) for f in trace.findings if not f.hint}
            errors = [error for error in errors if (error.kind, error.file, error.line) in repeated]
    except LaunchError as refused:
        return Verdict(False, f"{refused}; state in `requires` which sizes the kernel supports"), 0
    reason = headline(errors[0]) if errors else ""
    return Verdict(
        not errors, reason, findings=tuple(errors), launches=tuple(map(RecordedLaunch.of, launches))
    ), trace.unfinished_blocks


def _workspaces_to_fill(
    case: Case, launches: Sequence[KernelLaunch], buffers: dict[str, SparseMemory]
) -> list[np.ndarray]:
    """Return the contents of a case's workspaces if a later launch can read them and memory for all is affordable."""
    tensors = {tensor.name for tensor in (*case.problem.input_tensors(), *case.problem.output_tensors())}
    contents = [buffer.content for name, buffer in buffers.items() if name not in tensors]
    is_affordable = sum(content.nbytes for content in contents) <= MAX_FILLED_BYTES
    return contents if len(launches) > 1 and is_affordable else []
