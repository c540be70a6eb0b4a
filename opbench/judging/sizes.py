"""Choose the problems to judge a kernel on: named ones, examples, and random ones drawn after its submission."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from opbench.checking.checking import is_traceable
from opbench.errors import OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import MAX_SMALL_SIZE, emulated_work
from opbench.kernels.variant import Variant
from opbench.running.shapes import MAX_WORK, accepted_shapes, accepts, examples_of

Origin = Literal["named", "example", "random", "boundary"]
"""The origins of a problem: the task, the operator, or the seed, at random or next to a size of the kernel's tiles."""
WARP = 32
MAX_MULTIPLE = 3
"""A boundary is at most this multiple of a tile's size."""
MAX_TRIES = 60


@dataclass(frozen=True)
class JudgedProblem:
    """A problem to judge a kernel on, and its origin."""

    problem: Operator
    origin: Origin


def judged_problems(
    variant: Variant, operator: type[Operator], named: Sequence[Operator], seed: int, count: int
) -> list[JudgedProblem]:
    """Return the problems for one variant: named ones, examples, and `count` random and boundary sizes.

    Named problems that are too large for the CPU emulator are not included.
    """
    examples = examples_of(variant, operator)
    drawn = operator.random_problems(seed, count)
    random_ones = accepted_shapes(variant, drawn, [*examples, *named], seed).problems if count else ()
    boundary = boundary_problems(variant, [*named, *examples], seed, count)
    origins: dict[Operator, Origin] = {}
    for origin, problems in (
        ("named", [problem for problem in named if is_affordable(problem)]),
        ("example", examples),
        ("random", random_ones),
        ("boundary", boundary),
    ):
        for problem in problems:
            origins.setdefault(problem, origin)  # type: ignore[arg-type]
    return [JudgedProblem(problem, origin) for problem, origin in origins.items() if accepts(variant, problem)]


def is_affordable(problem: Operator) -> bool:
    """Return whether the CPU emulator runs a problem within about ten seconds."""
    return emulated_work(problem) <= MAX_WORK


def boundary_problems(variant: Variant, starts: Sequence[Operator], seed: int, count: int) -> list[Operator]:
    """Return problems of which one axis is a multiple of a tile's size, plus or minus one or exactly.

    Tiles are the dimensions of the variant's blocks, its tunables and a warp.
    """
    chance = random.Random(f"{seed}/boundary/{variant.id}")
    small = [problem for problem in starts if is_traceable(problem) and accepts(variant, problem)]
    if not small or not count:
        return []
    tiles = sorted(_tiles(variant, small[0]))
    problems: dict[Operator, None] = {}
    for _ in range(MAX_TRIES * count):
        start = chance.choice(small)
        axes = [name for name, size in start.axes.items() if isinstance(size, int) and size > MAX_SMALL_SIZE]
        if not axes:
            continue
        size = chance.choice(tiles) * chance.randint(1, MAX_MULTIPLE) + chance.choice((-1, 0, 1))
        try:
            problem = type(start).from_axes({**start.axes, chance.choice(axes): size})
        except UsageError:
            continue
        if size > 0 and problem not in starts and is_traceable(problem) and accepts(variant, problem):
            problems[problem] = None
        if len(problems) == count:
            break
    return list(problems)


def _tiles(variant: Variant, problem: Operator) -> set[int]:
    """Return sizes that may be tiles of a kernel: its block's dimensions, its tunables and a warp."""
    sizes = {WARP, *(value for values in variant.tune.values() for value in values)}
    for config in variant.configs:
        if variant.unmet_requirement(problem, config) is None:
            try:
                launches = Case(variant, config, problem).launches(1)
            except OpbenchError:  # the check reports it
                continue
            sizes |= {size for launch in launches if launch.kernel for size in launch.block}
    return {size for size in sizes if size > 1}
