"""Place all activations and workspaces of a network in one allocation, so that values share memory.

Only values that are never live at the same time share memory. Buffers are placed in several orders, each in the
smallest gap that fits, after Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020);
the problem itself is NP-hard.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT

MAX_TRIES = 50
"""Most changes of the best order of placement."""
MAX_PLACEMENTS = 16_000_000
"""Limits the changes for many buffers, whose placement takes the square of their number: 16 for 1,000."""


@dataclass(frozen=True)
class MemoryPlan:
    """The offsets in bytes of all values in one allocation; sizes are rounded up to the alignment."""

    offsets: Mapping[str, int]
    """Offset of each value that has its own memory and is no weight or state; a view has the offset of its base."""
    workspaces: Mapping[str, int]
    """Offset of the workspace of each node that has one."""
    peak_bytes: int
    """Size of the arena."""
    naive_bytes: int
    """Size of an arena without sharing."""
    lower_bound_bytes: int
    """The most bytes live at one moment if nodes run one after another: no plan for this order needs less."""


@dataclass(frozen=True)
class _Buffer:
    """One value or workspace with its size and lifetime."""

    name: str
    size: int
    start: int
    """Index of the node that produces it; -1 for an input."""
    users: frozenset[int]
    """Indices of all nodes that read or write it."""
    live_to_end: bool
    """Whether it is needed after the last node."""


def plan_memory(
    graph: Graph,
    workspaces: Mapping[str, int] | None = None,
    *,
    parallel: bool = False,
    share: bool = True,
) -> MemoryPlan:
    """Return the offsets of all values and workspaces.

    `workspaces` gives bytes by node. With `parallel`, nodes of independent branches may run at the same time:
    two values share memory only if the graph orders every user of one before the producer of the other.
    Otherwise nodes run one after another in graph order. Inputs stay intact to the end, so that a network can run
    again without writing them again. Without `share`, each value and workspace has memory of its own.
    """
    for node, size in (workspaces or {}).items():
        graph.node(node)
        if size < 0:
            raise UsageError(
                f"{node}: a workspace of {size} bytes is not allowed; correct the shape of the buffer in the header of "
                "the variant, so that the size is 0 or more",
                kind="not-allowed",
                subject=node,
                value=size,
                allowed=0,
            )
    values = _values(graph)
    workspace_buffers = [
        _Buffer(node.name, round_up(workspaces[node.name], WORKSPACE_ALIGNMENT), index, frozenset([index]), False)
        for index, node in enumerate(graph.nodes)
        if workspaces and workspaces.get(node.name)
    ]
    buffers = [*values, *workspace_buffers]
    ancestors = _ancestors(graph) if parallel else [(1 << index) - 1 for index in range(len(graph.nodes))]
    lower_bound = max(_live_bytes(buffers, len(graph.nodes)), default=0)
    if share:
        can_share = [[_may_share(buffer, other_buffer, ancestors) for other_buffer in buffers] for buffer in buffers]
        offsets = _best_places(buffers, can_share, lower_bound)
    else:
        offsets = list(itertools.accumulate((buffer.size for buffer in buffers), initial=0))[:-1]
    return MemoryPlan(
        offsets={buffer.name: offset for buffer, offset in zip(values, offsets, strict=False)},
        workspaces={
            buffer.name: offset for buffer, offset in zip(workspace_buffers, offsets[len(values) :], strict=True)
        },
        peak_bytes=_end_offset(buffers, offsets),
        naive_bytes=sum(buffer.size for buffer in buffers),
        lower_bound_bytes=lower_bound,
    )


def live_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes of live values while each node runs, one node after another.

    Workspaces are not included.
    """
    totals = _live_bytes(_values(graph), len(graph.nodes))
    return {node.name: totals[index + 1] for index, node in enumerate(graph.nodes)}


def _values(graph: Graph) -> list[_Buffer]:
    """Return all values with their own memory, in the order in which they are computed."""
    users: dict[str, set[int]] = {name: set() for name in graph.inputs}
    start = dict.fromkeys(graph.inputs, -1)
    for index, node in enumerate(graph.nodes):
        for name in node.outputs.values():
            if graph.memory(name)[0] not in graph.state:  # weights and state have their own memory
                start[name], users[name] = index, {index}
        for name in node.inputs.values():
            if (base := graph.base(name)) in users:
                users[base].add(index)
    kept_to_end = {graph.base(name) for name in graph.outputs} | set(graph.inputs)
    return [
        _Buffer(
            name,
            round_up(graph.values[name].nbytes, WORKSPACE_ALIGNMENT),
            start[name],
            frozenset(node_indices),
            name in kept_to_end,
        )
        for name, node_indices in users.items()
    ]


def _ancestors(graph: Graph) -> list[int]:
    """Return for each node a bit mask of the nodes that must end before it starts."""
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    ancestors: list[int] = []
    for node in graph.nodes:
        bits = 0
        for name in graph.waits_for(node.name):
            bits |= ancestors[index[name]] | 1 << index[name]
        ancestors.append(bits)
    return ancestors


def _may_share(buffer: _Buffer, other: _Buffer, ancestors: Sequence[int]) -> bool:
    """Return whether all uses of one buffer end before the other's first use, in either order."""

    def ends_before(first: _Buffer, second: _Buffer) -> bool:
        if first.live_to_end or second.start < 0:
            return False
        return all(ancestors[second.start] >> user & 1 for user in first.users)

    return ends_before(buffer, other) or ends_before(other, buffer)


def _live_bytes(buffers: Sequence[_Buffer], nodes: int) -> list[int]:
    """Return the bytes of live buffers before and during each node, and at the end; nodes run in order."""
    totals = [0] * (nodes + 2)
    for buffer in buffers:
        last_use = nodes if buffer.live_to_end else max(buffer.users, default=-1)
        for moment in range(buffer.start, last_use + 1):
            totals[moment + 1] += buffer.size
    return totals


def _best_places(buffers: Sequence[_Buffer], can_share: Sequence[Sequence[bool]], lower_bound: int) -> list[int]:
    """Return the offsets of all buffers with the lowest peak of several attempts.

    While the best is above the lower bound, a buffer that ends above it is placed earlier, some times over:
    this finds room in the fragmented arenas of transformers, whose values have the same few sizes.
    """
    best: list[int] = []
    best_order: Sequence[int] = ()
    for order in _placement_orders(buffers):
        offsets = _place_buffers(buffers, can_share, order)
        if not best_order or _end_offset(buffers, offsets) < _end_offset(buffers, best):
            best, best_order = offsets, order
    rng = random.Random(0)
    for attempt in range(min(MAX_TRIES, MAX_PLACEMENTS // max(1, len(buffers)) ** 2)):
        end_offsets = [offset + buffer.size for offset, buffer in zip(best, buffers, strict=True)]
        above_bound = [i for i, end in enumerate(end_offsets) if end > lower_bound]
        if not above_bound:
            break
        moved = rng.choice(above_bound) if attempt % 2 else max(above_bound, key=lambda i: end_offsets[i])
        position = best_order.index(moved)
        changed = [i for i in best_order if i != moved]
        changed.insert(rng.randint(0, position), moved)
        offsets = _place_buffers(buffers, can_share, changed)
        if _end_offset(buffers, offsets) <= _end_offset(buffers, best):
            best, best_order = offsets, changed
    return best


def _placement_orders(buffers: Sequence[_Buffer]) -> list[list[int]]:
    """Return orders in which to place buffers: by size, by size times users, by creation, by live bytes.

    By live bytes: first the buffers that are live at the moment with the most live bytes, then those of the moment with
    the next most.
    """
    indices = range(len(buffers))
    by_size = sorted(indices, key=lambda i: (-buffers[i].size, buffers[i].start))
    by_size_times_users = sorted(indices, key=lambda i: (-buffers[i].size * len(buffers[i].users), buffers[i].start))
    totals = _live_bytes(buffers, 1 + max((max(b.users, default=0) for b in buffers), default=0))
    live = {i: range(buffers[i].start + 1, max(buffers[i].users, default=buffers[i].start) + 2) for i in indices}
    fullest = {i: min(moments, key=lambda moment: (-totals[moment], moment)) for i, moments in live.items()}
    by_breadth = sorted(indices, key=lambda i: (-totals[fullest[i]], fullest[i], -buffers[i].size))
    return [by_size, by_size_times_users, list(indices), by_breadth]


def _place_buffers(buffers: Sequence[_Buffer], can_share: Sequence[Sequence[bool]], order: Sequence[int]) -> list[int]:
    """Place buffers in an order and return their offsets; each gets the smallest gap that fits."""
    offsets = [-1] * len(buffers)
    for i in order:
        size, best, narrowest, end = buffers[i].size, -1, 0, 0
        placed_ranges = sorted((offsets[j], buffers[j].size) for j in order if offsets[j] >= 0 and not can_share[i][j])
        for offset, size_bytes in placed_ranges:
            gap = offset - end
            if gap >= size and (best < 0 or gap < narrowest):
                best, narrowest = end, gap
            end = max(end, offset + size_bytes)
        offsets[i] = best if best >= 0 else end
    return offsets


def _end_offset(buffers: Sequence[_Buffer], offsets: Sequence[int]) -> int:
    return max((offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True)), default=0)
