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
"""The origins of a problem: the task, the operator's examples, or a drawn size, at random or next to a tile's size."""
WARP_THREADS = 32
MAX_MULTIPLE = 3
"""A boundary is at most this multiple of a tile's size."""
MAX_TRIES = 60
"""The greatest number of drawn sizes for each boundary problem."""


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
    random_problems = accepted_shapes(variant, drawn, [*examples, *named], seed).problems if count else ()
    boundary = boundary_problems(variant, [*named, *examples], seed, count)
    origins: dict[Operator, Origin] = {}
    for origin, problems in (
        ("named", [problem for problem in named if is_affordable(problem)]),
        ("example", examples),
        ("random", random_problems),
        ("boundary", boundary),
    ):
        for problem in problems:
            origins.setdefault(problem, origin)  # type: ignore[arg-type]
    return [JudgedProblem(problem, origin) for problem, origin in origins.items() if accepts(variant, problem)]


def is_affordable(problem: Operator) -> bool:
    """Return whether the CPU emulator runs a problem within about ten seconds."""
    return emulated_work(problem) <= MAX_WORK


def boundary_problems(variant: Variant, start_problems: Sequence[Operator], seed: int, count: int) -> list[Operator]:
    """Return problems with one axis at a multiple of a tile's size, or one more or one less.

    Tiles are the dimensions of the variant's blocks, its tunables and a warp.
    """
    generator = random.Random(f"{seed}/boundary/{variant.id}")
    traceable_problems = [problem for problem in start_problems if is_traceable(problem) and accepts(variant, problem)]
    if not traceable_problems or not count:
        return []
    tiles = sorted(_tiles(variant, traceable_problems[0]))
    problems: dict[Operator, None] = {}
    for _ in range(MAX_TRIES * count):
        start = generator.choice(traceable_problems)
        axes = [name for name, size in start.axes.items() if isinstance(size, int) and size > MAX_SMALL_SIZE]
        if not axes:
            continue
        size = generator.choice(tiles) * generator.randint(1, MAX_MULTIPLE) + generator.choice((-1, 0, 1))
        try:
            problem = type(start).from_axes({**start.axes, generator.choice(axes): size})
        except UsageError:
            continue
        if size > 0 and problem not in start_problems and is_traceable(problem) and accepts(variant, problem):
            problems[problem] = None
        if len(problems) == count:
            break
    return list(problems)


def _tiles(variant: Variant, problem: Operator) -> set[int]:
    """Return sizes that may be tiles of a kernel: its block's dimensions, its tunables and a warp."""
    sizes = {WARP_THREADS, *(value for values in variant.tune.values() for value in values)}
    for config in variant.configs:
        if variant.unmet_requirement(problem, config) is None:
            try:
                launches = Case(variant, config, problem).launches(1)
            except OpbenchError:  # The check reports the error.
                continue
            sizes |= {size for launch in launches if launch.kernel for size in launch.block}
    return {size for size in sizes if size > 1}
