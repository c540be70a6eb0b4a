"""Launches that rotate over several sets of buffers, so that each launch of a CUDA graph finds a cold L2 cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.backend.base import ArenaBackend, Backend, Buffer, RotatingLaunch, TimedBackend
from opbench.checking.contents import TIMED_INPUT_KINDS, input_kind_of_buffer_set
from opbench.errors import EnvironmentFault
from opbench.kernels.case import Case
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import Tensor
from opbench.timing.clock import Launch

L2_FACTOR = 3
"""Total size of the buffer sets as a multiple of the L2 size, so that L2 evicts a set before it is used again."""
MAX_BUFFER_SETS, MAX_ADDED_BYTES = 1024, 2 << 30
"""Most sets (a graph's number of launches), and most bytes of the additional sets."""
ALIGNMENT = 512
"""Alignment of each tensor in bytes, equal to that of the driver's allocations."""


@dataclass
class Rotation:
    """The launches for each case's graph, and how cold the L2 cache is for them.

    A case whose graph uses only the buffers of its check appears only in `mode_by_case`.
    """

    launches: dict[str, Launch] = field(default_factory=dict)
    mode_by_case: dict[str, str] = field(default_factory=dict)
    """The mode of each case, such as "graph, cold (12 buffer sets)" or "graph, hot"."""
    outputs: list[Mapping[str, Buffer]] = field(default_factory=list)
    """The output tensors of each set."""
    buffers_to_poison: dict[str, list[Buffer]] = field(default_factory=dict)
    """The outputs and workspaces of all sets, in as few buffers as possible."""
    arenas: dict[str, Buffer] = field(default_factory=dict)
    """The memory of the additional sets, which the caller frees."""


def buffer_set_count(bytes_per_set: int, l2_bytes: int) -> int:
    """Return the number of buffer sets that keep L2 cold; 0 if they would be too many or too large.

    If memory allows, there is at least one set for each kind of inputs.
    """
    set_count = max(1, math.ceil(L2_FACTOR * l2_bytes / bytes_per_set))
    if set_count < len(TIMED_INPUT_KINDS) and (len(TIMED_INPUT_KINDS) - 1) * bytes_per_set <= MAX_ADDED_BYTES:
        set_count = len(TIMED_INPUT_KINDS)
    return set_count if set_count <= MAX_BUFFER_SETS and (set_count - 1) * bytes_per_set <= MAX_ADDED_BYTES else 0


def rotate_buffers(
    backend: Backend,
    cases: Sequence[Case],
    buffers: Mapping[str, Buffer],
    workspaces: Mapping[str, Mapping[str, Buffer]],
    contents: Mapping[str, Mapping[str, Buffer]],
    bind: Callable[[Case, Mapping[str, Buffer]], Launch],
) -> Rotation:
    """Allocate more sets of one problem's buffers, fill them with `contents` in turn, and bind every case to each.

    The first set of each case is the buffers of its check. If memory is short, the L2 cache is hot for the
    case's graph.
    """
    rotation, problem = Rotation(), cases[0].problem
    input_tensors, output_tensors = problem.input_tensors(), problem.output_tensors()
    l2_bytes = backend.l2_bytes if isinstance(backend, TimedBackend) else 0
    count = buffer_set_count(sum(t.nbytes for t in (*input_tensors, *output_tensors)), l2_bytes)
    rotates = count > 1 and len(contents) == len(TIMED_INPUT_KINDS)
    inputs = _buffer_sets(backend, rotation, "inputs", input_tensors, count - 1) if rotates else None
    outputs = _buffer_sets(backend, rotation, "outputs", output_tensors, count - 1) if inputs is not None else None
    for number, views in enumerate(inputs or ()):
        for name, view in views.items():
            view.copy_from(contents[input_kind_of_buffer_set(number + 1)][name])
    rotation.outputs = [{t.name: buffers[t.name] for t in output_tensors}, *(outputs or ())]
    for case in cases:
        workspace_tensors = case.workspace(backend.sm_count)
        workspace_sets = (
            _buffer_sets(backend, rotation, case.name, workspace_tensors, count - 1) if outputs is not None else None
        )
        if inputs is None or outputs is None or workspace_sets is None:
            rotation.mode_by_case[case.name] = "graph, cold (1 buffer set)" if count == 1 else "graph, hot"
            continue
        sets = [
            {**buffers, **workspaces[case.name]},
            *({**i, **o, **e} for i, o, e in zip(inputs, outputs, workspace_sets, strict=True)),
        ]
        rotation.launches[case.name] = RotatingLaunch([bind(case, buffers) for buffers in sets])
        rotation.mode_by_case[case.name] = f"graph, cold ({count} buffer sets)"
        rotation.buffers_to_poison[case.name] = [
            *rotation.outputs[0].values(),
            *workspaces[case.name].values(),
            *(rotation.arenas[name] for name in ("outputs", case.name) if name in rotation.arenas),
        ]
    return rotation


def _buffer_sets(
    backend: Backend, rotation: Rotation, name: str, tensors: Sequence[Tensor], count: int
) -> list[dict[str, Buffer]] | None:
    """Return `count` sets of buffers within one allocation, which is added to `rotation`; None if they do not fit."""
    offsets, size = {}, 0
    for tensor in tensors:
        offsets[tensor.name] = size
        size += round_up(tensor.nbytes, ALIGNMENT)
    if not size or not count:
        return [{} for _ in range(count)]
    if count * size > MAX_ADDED_BYTES or not isinstance(backend, ArenaBackend):
        return None
    try:
        arena = rotation.arenas[name] = backend.allocate_arena(count * size)
    except EnvironmentFault:
        return None
    return [
        {t.name: backend.view(arena, t, number * size + offsets[t.name]) for t in tensors} for number in range(count)
    ]
