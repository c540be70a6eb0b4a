"""Launches that take turns at several sets of buffers, so that a CUDA graph of many finds none of them in the L2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.backend.base import Arena, Backend, Buffer, Rotated, Timed
from opbench.checking.contents import CONTENTS, kind_of_set
from opbench.errors import EnvironmentFault
from opbench.kernels.case import Case
from opbench.kernels.tensors import Tensor
from opbench.timing.clock import Launch

TIMES_L2 = 3
"""Sets of buffers that hold together so many times what the L2 does: it has evicted one before its turn comes again."""
MOST_SETS, MOST_BYTES = 1024, 2 << 30
"""As many sets as a graph has launches at most, and the memory that the further ones may take."""
ALIGNMENT = 512
"""Of each tensor, as the driver aligns what it allocates."""


@dataclass
class Rotation:
    """What a graph of each case launches, and how warm its caches are.

    A case whose graph stays on the buffers that it was checked on is in `modes` only.
    """

    launches: dict[str, Launch] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    """Such as "graph, cold (12 buffer sets)" or "graph, hot"."""
    outputs: list[Mapping[str, Buffer]] = field(default_factory=list)
    """The output tensors of each set."""
    poisoned: dict[str, list[Buffer]] = field(default_factory=dict)
    """Outputs and workspaces of all sets, as few buffers as hold them."""
    arenas: dict[str, Buffer] = field(default_factory=dict)
    """Memory of the further sets, to be given back."""


def sets_wanted(set_bytes: int, l2_bytes: int) -> int:
    """How many sets a cold graph takes; 0 where they would be too many or take too much memory.

    Where memory allows there is one for each content of the inputs.
    """
    wanted = max(1, math.ceil(TIMES_L2 * l2_bytes / set_bytes))
    if wanted < len(CONTENTS) and (len(CONTENTS) - 1) * set_bytes <= MOST_BYTES:
        wanted = len(CONTENTS)
    return wanted if wanted <= MOST_SETS and (wanted - 1) * set_bytes <= MOST_BYTES else 0


def rotate(
    backend: Backend,
    cases: Sequence[Case],
    buffers: Mapping[str, Buffer],
    workspaces: Mapping[str, Mapping[str, Buffer]],
    contents: Mapping[str, Mapping[str, Buffer]],
    bind: Callable[[Case, Mapping[str, Buffer]], Launch],
) -> Rotation:
    """Make further sets of one problem's buffers, filled with `contents` in turn, and bind every case to each of them.

    Of each case the first set is the buffers that it was checked on. Where memory is short, its graph stays hot.
    """
    found, problem = Rotation(), cases[0].problem
    given, made = problem.input_tensors(), problem.output_tensors()
    l2_bytes = backend.l2_bytes if isinstance(backend, Timed) else 0
    count = sets_wanted(sum(t.nbytes for t in (*given, *made)), l2_bytes)
    rotates = count > 1 and len(contents) == len(CONTENTS)
    inputs = _sets(backend, found, "inputs", given, count - 1) if rotates else None
    outputs = _sets(backend, found, "outputs", made, count - 1) if inputs is not None else None
    for number, views in enumerate(inputs or ()):
        for name, view in views.items():
            view.copy_from(contents[kind_of_set(number + 1)][name])
    found.outputs = [{t.name: buffers[t.name] for t in made}, *(outputs or ())]
    for case in cases:
        own = case.workspace(backend.sm_count)
        extra = _sets(backend, found, case.name, own, count - 1) if outputs is not None else None
        if inputs is None or outputs is None or extra is None:
            found.modes[case.name] = "graph, cold (1 buffer set)" if count == 1 else "graph, hot"
            continue
        sets = [
            {**buffers, **workspaces[case.name]},
            *({**i, **o, **e} for i, o, e in zip(inputs, outputs, extra, strict=True)),
        ]
        found.launches[case.name] = Rotated([bind(case, each) for each in sets])
        found.modes[case.name] = f"graph, cold ({count} buffer sets)"
        found.poisoned[case.name] = [
            *found.outputs[0].values(),
            *workspaces[case.name].values(),
            *(found.arenas[name] for name in ("outputs", case.name) if name in found.arenas),
        ]
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
