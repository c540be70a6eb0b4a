"""Memory plan: where each activation and workspace of a network lies in one arena, shared by those never live together.

Placing largest first, each in the smallest gap that takes it, follows Pisarchyk and Lee, "Efficient memory management
for deep neural net inference" (2020); the problem itself is NP-hard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.kernels.expression import cdiv

ALIGNMENT = 256
"""Bytes; what cudaMalloc guarantees, so that vector loads stay aligned."""


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets in bytes into one arena; all sizes are rounded up to the alignment."""

    offsets: Mapping[str, int]
    """Of each value in memory of its own that is no weight or state; a view lies where its base does."""
    workspaces: Mapping[str, int]
    """Of the workspace of each node that has one."""
    peak_bytes: int
    """Size of the arena."""
    naive_bytes: int
    """What it would take if nothing were shared."""
    lower_bound_bytes: int
    """The most that is live at one moment when nodes run one after another: no plan for that takes less."""


@dataclass(frozen=True)
class _Buffer:
    """What one value or workspace needs."""

    name: str
    size: int
    start: int
    """Index of the node that produces it; -1 for an input."""
    users: frozenset[int]
    """Indices of all nodes that touch it."""
    to_the_end: bool
    """Whether it is needed after the last node."""


def plan_memory(
    graph: Graph, workspaces: Mapping[str, int] | None = None, *, parallel: bool = False, keep_inputs: bool = True
) -> MemoryPlan:
    """Offsets for all values, and for `workspaces`, bytes by node.

    `parallel`: nodes of independent branches may run at once, so two values share memory only where every user of one
    is ordered by the graph before the producer of the other; else nodes run one after another as the graph has them.
    `keep_inputs`: inputs stay whole to the end, so that a network can be run again without writing them again.
    """
    for node, size in (workspaces or {}).items():
        graph.node(node)
        if size < 0:
            raise UsageError(f"{node}: a workspace of {size} bytes is not allowed; at least 0")
    values = _values(graph, keep_inputs)
    extra = [
        _Buffer(node.name, aligned(workspaces[node.name]), index, frozenset([index]), False)
        for index, node in enumerate(graph.nodes)
        if workspaces and workspaces.get(node.name)
    ]
    buffers = [*values, *extra]
    before = _ancestors(graph) if parallel else [(1 << index) - 1 for index in range(len(graph.nodes))]
    apart = [[_may_share(one, other, before) for other in buffers] for one in buffers]
    places = min((_placed(buffers, apart, order) for order in _orders(buffers)), key=lambda p: _end(buffers, p))
    return MemoryPlan(
        offsets={buffer.name: place for buffer, place in zip(values, places, strict=False)},
        workspaces={buffer.name: place for buffer, place in zip(extra, places[len(values) :], strict=True)},
        peak_bytes=_end(buffers, places),
        naive_bytes=sum(buffer.size for buffer in buffers),
        lower_bound_bytes=max(_live(buffers, len(graph.nodes)), default=0),
    )


def live_bytes(graph: Graph, keep_inputs: bool = True) -> dict[str, int]:
    """Bytes of values that are live while each node runs, nodes one after another; workspaces come on top."""
    totals = _live(_values(graph, keep_inputs), len(graph.nodes))
    return {node.name: totals[index + 1] for index, node in enumerate(graph.nodes)}


def aligned(nbytes: int) -> int:
    """What a buffer takes in an arena: its bytes, rounded up to the alignment."""
    return cdiv(nbytes, ALIGNMENT) * ALIGNMENT


def _values(graph: Graph, keep_inputs: bool) -> list[_Buffer]:
    """Every value in memory of its own, in the order in which they come to be."""
    users: dict[str, set[int]] = {name: set() for name in graph.inputs}
    start = dict.fromkeys(graph.inputs, -1)
    for index, node in enumerate(graph.nodes):
        for name in node.outputs.values():
            if graph.memory(name)[0] not in graph.state:  # which has memory of its own
                start[name], users[name] = index, {index}
        for name in node.inputs.values():
            if (base := graph.base(name)) in users:
                users[base].add(index)
    kept = {graph.base(name) for name in graph.outputs} | set(graph.inputs if keep_inputs else ())
    return [
        _Buffer(name, aligned(graph.values[name].nbytes), start[name], frozenset(touching), name in kept)
        for name, touching in users.items()
    ]


def _ancestors(graph: Graph) -> list[int]:
    """For each node, as bits, the nodes that must have ended before it starts."""
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    found: list[int] = []
    for node in graph.nodes:
        bits = 0
        for name in graph.waits_for(node.name):
            bits |= found[index[name]] | 1 << index[name]
        found.append(bits)
    return found


def _may_share(one: _Buffer, other: _Buffer, before: Sequence[int]) -> bool:
    """Whether one is done with before the other comes to be, or the other way round."""

    def done(first: _Buffer, then: _Buffer) -> bool:
        if first.to_the_end or then.start < 0:
            return False
        return all(before[then.start] >> user & 1 for user in first.users)

    return done(one, other) or done(other, one)


def _live(buffers: Sequence[_Buffer], nodes: int) -> list[int]:
    """Bytes that are live before, while each node runs, and after, one after another."""
    totals = [0] * (nodes + 2)
    for buffer in buffers:
        last = nodes if buffer.to_the_end else max(buffer.users, default=-1)
        for moment in range(buffer.start, last + 1):
            totals[moment + 1] += buffer.size
    return totals


def _orders(buffers: Sequence[_Buffer]) -> list[list[int]]:
    """Orders to place buffers in: largest first, longest lived first among them, and as they come to be."""
    every = range(len(buffers))
    by_size = sorted(every, key=lambda i: (-buffers[i].size, buffers[i].start))
    by_bytes_and_life = sorted(every, key=lambda i: (-buffers[i].size * len(buffers[i].users), buffers[i].start))
    return [by_size, by_bytes_and_life, list(every)]


def _placed(buffers: Sequence[_Buffer], apart: Sequence[Sequence[bool]], order: Sequence[int]) -> list[int]:
    """Offset of each buffer: the smallest gap that takes it among those placed that it may not share with."""
    places = [-1] * len(buffers)
    for i in order:
        size, best, narrowest, end = buffers[i].size, -1, 0, 0
        others = sorted((places[j], buffers[j].size) for j in order if places[j] >= 0 and not apart[i][j])
        for place, taken in others:
            gap = place - end
            if gap >= size and (best < 0 or gap < narrowest):
                best, narrowest = end, gap
            end = max(end, place + taken)
        places[i] = best if best >= 0 else end
    return places


def _end(buffers: Sequence[_Buffer], places: Sequence[int]) -> int:
    return max((place + buffer.size for place, buffer in zip(places, buffers, strict=True)), default=0)
