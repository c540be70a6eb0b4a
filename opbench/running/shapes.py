"""The problems on which a variant is checked: its operator's examples, and shapes generated from its requirements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opbench.checking.checking import DEFAULT_SEED, is_traceable
from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import GeneratedShapes, emulated_work, make_shapes
from opbench.kernels.variant import Config, Variant
from opbench.paths import shipped_folder
from opbench.source.sources import tensor_core_operand_types

RANDOM_STARTS = 12
"""Number of random shapes to start from when making shapes that a variant accepts."""
MAX_WORK = 2.5e9
"""FLOPs and elements moved that take the CPU emulator about ten seconds; no larger problem is made."""
MAX_EMULATED_WORK = 2e8
"""The limit if tensor cores are emulated."""
MAX_GENERATED_BYTES = 1 << 28
"""Most bytes of all tensors of a generated problem."""
PROBLEM_COUNT = 4
"""Number of problems to make if a run needs one."""
FEW_WARPS = 64
"""Size from which an axis fills warps, even if each thread has one of its elements."""
REDUCED_SIZES = (32, 16, 8)
"""Smaller sizes that axes are halved to, one after the other, until a problem can be counted quickly."""
MAX_COUNTED_BYTES = 3 << 18
"""Most bytes of all tensors of a reduced problem: a kernel may read each of them again for every output."""
MAX_GROWTH = 2
"""Factor by which a generated problem for a GPU may exceed the given ones."""


def examples_of(variant: Variant, operator: type[Operator]) -> list[Operator]:
    """Return the operator's examples, including those in dtypes that only the variant's `supports` names."""
    return operator.all_examples(variant.supports.get("dtype", ()))


def with_supported_dtype(variant: Variant, problem: Operator) -> Operator:
    """Return a problem in a dtype that a variant supports: its own dtype if possible, else the first of `supports`."""
    supported_dtypes = [
        dtype for dtype in variant.supports.get("dtype", ()) if dtype in problem.choices.get("dtype", ())
    ]
    return (
        problem
        if not supported_dtypes or problem.storage in supported_dtypes
        else problem.stored_as(supported_dtypes[0])
    )


def shapes_like(variant: Variant, problems: Sequence[Operator], backend: str) -> list[Operator]:
    """Return problems that a variant accepts, the largest first, generated from its rules and similar to `problems`.

    On the cpu backend they are small enough for the emulator, on a GPU about as large as the given ones.
    """
    if backend == "cpu":
        problems_made = accepted_shapes(variant, [], problems, DEFAULT_SEED, PROBLEM_COUNT)
    else:
        largest = [max(map(cost, problems)) for cost in (emulated_work, Operator.bytes)]

        def is_similar(problem: Operator) -> bool:
            return emulated_work(problem) <= MAX_GROWTH * largest[0] and problem.bytes() <= MAX_GROWTH * largest[1]

        problems_made = make_shapes(variant, problems, PROBLEM_COUNT, DEFAULT_SEED, is_similar, is_similar, problems)
    return sorted(problems_made.problems, key=emulated_work, reverse=True)


def reduced_problem(variant: Variant, config: Config, problem: Operator) -> Operator | None:
    """Return a smaller problem whose accesses are counted quickly on the CPU; None if the variant accepts none.

    Sizes are halved, so that vectors and tiles still divide them. Axes that are innermost in no tensor come first; each
    keeps two warps until all are that small, because a few rows would not show how the lanes of a warp access memory.
    Then come batches: the outermost axis of outputs with three axes or more. `config` is a config of the variant.
    """
    axes = [axis for axis, size in problem.axes.items() if isinstance(size, int)]
    shapes = [axes_text.split() for axes_text in (*problem.inputs.values(), *problem.outputs.values())]
    innermost = {shape[-1] for shape in shapes if len(shape) > 1}
    outer = [axis for axis in axes if axis not in innermost]
    inner = [axis for axis in axes if axis in innermost]
    batches = [shape[0] for axes_text in problem.outputs.values() if len(shape := axes_text.split()) > 2]
    reductions = [(group, min_size) for min_size in REDUCED_SIZES for group in (outer, inner)]
    for group, min_size in ((outer, FEW_WARPS), (inner, FEW_WARPS), (batches, 1), *reductions):
        while not _is_quick(problem):
            smaller = min(_halved(variant, config, problem, group, min_size), key=_counted_work, default=None)
            if smaller is None or _counted_work(smaller) >= _counted_work(problem):
                break
            problem = smaller
    return problem if _is_quick(problem) else None


def _halved(
    variant: Variant, config: Config, problem: Operator, axes: Sequence[str], min_size: int
) -> Iterator[Operator]:
    """Yield accepted problems in which one of `axes` is halved, and equal axes too if the variant requires it."""
    for axis in axes:
        size = problem.axes.get(axis)
        if not isinstance(size, int) or size // 2 < min_size:
            continue
        # An odd size stays odd, so that vectors still do not divide its rows.
        halved_size = size // 2 | size % 2
        equal_axes = [other_axis for other_axis, value in problem.axes.items() if value == size]
        for changed in ([axis], equal_axes):
            try:
                smaller = type(problem).from_axes({**problem.axes, **dict.fromkeys(changed, halved_size)})
                accepted = variant.unmet_requirement(smaller, config) is None
            except UsageError:
                continue
            if accepted:
                yield smaller
                break


def _stored_bytes(problem: Operator) -> int:
    """Return the bytes of all tensors, including rows that are not read."""
    return sum(tensor.nbytes for tensor in (*problem.input_tensors(), *problem.output_tensors()))


def _counted_work(problem: Operator) -> float:
    """Return the work of a problem and of making its tensors."""
    return emulated_work(problem) + _stored_bytes(problem) / 4


def _is_quick(problem: Operator) -> bool:
    """Return whether the accesses of a problem are counted in about a second, if no element is read twice."""
    return is_traceable(problem) and _stored_bytes(problem) <= MAX_COUNTED_BYTES


def is_shipped(variant: Variant) -> bool:
    """Return whether a variant is part of opbench: then its operator's examples are known to cover it."""
    return variant.path.resolve().is_relative_to(shipped_folder("variants").resolve())


def accepts(variant: Variant, problem: Operator) -> bool:
    """Return whether any config of a variant supports a problem."""
    return any(variant.unmet_requirement(problem, config) is None for config in variant.configs)


def accepted_shapes(
    variant: Variant, drawn: Sequence[Operator], examples: Sequence[Operator], seed: int, count: int = 0
) -> GeneratedShapes:
    """Return random shapes that a variant accepts.

    These are `drawn` if the variant accepts all of them, else as many generated from its rules.
    """
    if drawn and all(accepts(variant, problem) for problem in drawn):
        return GeneratedShapes(tuple(drawn))
    is_slow = variant.product or variant.compute_capability or tensor_core_operand_types(variant.sources)
    limit = MAX_EMULATED_WORK if is_slow else MAX_WORK

    def is_affordable(problem: Operator) -> bool:
        return emulated_work(problem) <= limit and problem.bytes() <= MAX_GENERATED_BYTES

    starts = [*drawn, *examples, *type(examples[0]).random_problems(seed, RANDOM_STARTS)]
    return make_shapes(variant, starts, count or len(drawn), seed, is_traceable, is_affordable, examples)
