"""Problems of an operator that a variant accepts: its examples, and shapes made from its requirements."""

from __future__ import annotations

from collections.abc import Sequence

from opbench.checking.checking import SEED, is_traceable
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import Shapes, make_shapes, work
from opbench.kernels.variant import Variant
from opbench.paths import shipped
from opbench.source.sources import tensor_core_operand_types

STARTS = 12
"""Number of random shapes to start from when making shapes that a variant accepts."""
AFFORDABLE_WORK = 2.5e9
"""FLOPs and elements moved that take the CPU emulator about ten seconds; no larger problem is made."""
SLOW_WORK = 2e8
"""The limit if tensor cores are emulated."""
AFFORDABLE_BYTES = 1 << 28
"""Most bytes of all tensors of a generated problem."""
LISTED = 4
"""Number of problems to make if a run needs one."""
LARGER = 2
"""Factor by which a generated problem for a GPU may exceed the given ones."""


def examples_of(variant: Variant, operator: type[Operator]) -> list[Operator]:
    """Return the operator's examples, also in those dtypes that only the variant's `supports` names."""
    return operator.all_examples(variant.supports.get("dtype", ()))


def stored_for(variant: Variant, problem: Operator) -> Operator:
    """Return a problem in a dtype that a variant supports: unchanged if supported, else in the first of `supports`."""
    served = [dtype for dtype in variant.supports.get("dtype", ()) if dtype in problem.choices.get("dtype", ())]
    return problem if not served or problem.storage in served else problem.stored_as(served[0])


def shapes_like(variant: Variant, problems: Sequence[Operator], backend: str, seed: int = SEED) -> list[Operator]:
    """Return problems that a variant accepts, the largest first, made from its rules starting at given problems.

    On the cpu backend they are small enough for the emulator, on a GPU about as large as the given ones.
    """
    if backend == "cpu":
        made = accepted_shapes(variant, [], problems, seed, LISTED)
    else:
        largest = [max(map(of, problems)) for of in (work, Operator.bytes)]

        def is_alike(problem: Operator) -> bool:
            return work(problem) <= LARGER * largest[0] and problem.bytes() <= LARGER * largest[1]

        made = make_shapes(variant, problems, LISTED, seed, is_alike, is_alike, problems)
    return sorted(made.problems, key=work, reverse=True)


def is_shipped(variant: Variant) -> bool:
    """Return whether a variant ships with opbench, in which case its operator's examples are known to cover it."""
    return variant.path.resolve().is_relative_to(shipped("variants").resolve())


def accepts(variant: Variant, problem: Operator) -> bool:
    """Return whether any config of a variant fits a problem."""
    return any(variant.unmet(problem, config) is None for config in variant.configs)


def accepted_shapes(
    variant: Variant, drawn: Sequence[Operator], examples: Sequence[Operator], seed: int, count: int = 0
) -> Shapes:
    """Return random shapes that a variant accepts: `drawn` if all are accepted, else as many made from its rules."""
    if drawn and all(accepts(variant, problem) for problem in drawn):
        return Shapes(tuple(drawn))
    slow = variant.product or variant.compute_capability or tensor_core_operand_types(variant.sources)
    limit = SLOW_WORK if slow else AFFORDABLE_WORK

    def is_affordable(problem: Operator) -> bool:
        return work(problem) <= limit and problem.bytes() <= AFFORDABLE_BYTES

    starts = [*drawn, *examples, *type(examples[0]).random_problems(seed, STARTS)]
    return make_shapes(variant, starts, count or len(drawn), seed, is_traceable, is_affordable, examples)
