"""Launches that take turns at several sets of buffers, so that a CUDA graph of many finds none of them in the L2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.backends.base import Arena, Backend, Buffer, Rotated, Timed
from opbench.catalog.case import Case
from opbench.catalog.operator import Arrays, Tensor
from opbench.errors import EnvironmentFault
from opbench.timing.clock import Launch

TIMES_L2 = 3
"""Sets of buffers that hold together so many times what the L2 does: it has evicted one before its turn comes again."""
MOST_SETS, MOST_BYTES = 1024, 2 << 30
"""As many sets as a graph has launches at most, and the memory that the further ones may take."""
ALIGNMENT = 512
"""Of each tensor, as the driver aligns what it allocates."""


@dataclass
class Rotation:
    """What a graph of each case is to launch, and how its caches are."""

    launches: dict[str, Launch] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    """Such as "graph, cold (12 buffer sets)" or "graph, hot"."""
    arenas: dict[str, Buffer] = field(default_factory=dict)
    """Memory of the further sets, to be given back."""


def sets_wanted(set_bytes: int, l2_bytes: int) -> int:
    """How many sets a cold graph takes; 0 where they would be too many or take too much memory."""
    wanted = max(1, math.ceil(TIMES_L2 * l2_bytes / set_bytes))
    return wanted if wanted <= MOST_SETS and (wanted - 1) * set_bytes <= MOST_BYTES else 0


def rotate(
    backend: Backend,
    cases: Sequence[Case],
    buffers: Mapping[str, Buffer],
    workspaces: Mapping[str, Mapping[str, Buffer]],
    inputs: Arrays,
    bind: Callable[[Case, Mapping[str, Buffer]], Launch],
) -> Rotation:
    """Further sets of one problem's buffers, filled alike, and every case bound to each of them.

    Of each case the first set is the buffers that it was checked on. Where memory is short, its graph stays hot.
    """
    found, problem = Rotation(), cases[0].problem
    tensors = [*problem.input_tensors(), *problem.output_tensors()]
    l2_bytes = backend.l2_bytes if isinstance(backend, Timed) else 0
    count = sets_wanted(sum(t.nbytes for t in tensors), l2_bytes)
    sets = _sets(backend, found, "tensors", tensors, count - 1) if count else None
    for view in (view for views in sets or () for view in views.values() if view.name in inputs):
        view.write(inputs[view.name])
    for case in cases:
        own = case.workspace(backend.sm_count)
        extra = _sets(backend, found, case.name, own, count - 1) if sets is not None else None
        first = bind(case, {**buffers, **workspaces[case.name]})
        if sets is None or extra is None:
            found.launches[case.name], found.modes[case.name] = first, "graph, hot"
            continue
        others = [bind(case, {**views, **scratch}) for views, scratch in zip(sets, extra, strict=True)]
        found.launches[case.name] = Rotated([first, *others])
        found.modes[case.name] = f"graph, cold ({count} buffer set{'s' if count > 1 else ''})"
    return found


def _sets(
    backend: Backend, found: Rotation, name: str, tensors: Sequence[Tensor], count: int
) -> list[dict[str, Buffer]] | None:
    """So many sets of views into an arena that is added to `found`; None where it does not fit."""
    offsets, size = {}, 0
    for tensor in tensors:
        offsets[tensor.name] = size
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    if not size or not count:
        return [{} for _ in range(count)]
    if count * size > MOST_BYTES or not isinstance(backend, Arena):
        return None
    try:
        arena = found.arenas[name] = backend.arena(count * size)
    except EnvironmentFault:
        return None
    return [
        {t.name: backend.view(arena, t, number * size + offsets[t.name]) for t in tensors} for number in range(count)
    ]
