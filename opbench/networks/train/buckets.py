"""What several GPUs exchange at once of a step's gradients, and which nodes run beside that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opbench.graph.training_step import Exchange, Training
from opbench.graph.values import Node
from opbench.kernels.tensors import DTYPES

Bucket = tuple[int, tuple[int, int]]
"""A range of the arena, behind the number of the node that finishes it."""
BYTES_PER_S, BEGIN_S = 180e9, 10e-6
"""Of an exchange between two H200s by twelve blocks (200 MB in 0.96 ms): to tell what runs beside it, not to quote."""

SURELY = 2
"""Times that a gain is to be what it costs: an exchange is often through earlier, which nobody gets back."""


def micro_batch(training: Training, exchange: Exchange) -> list[Node]:
    """The nodes of one micro-batch: all but what adds micro-batches up and what a step does once."""
    return [n for n in training.graph.nodes if n.name not in exchange.once and n.name != exchange.adds]


def buckets(training: Training, bucket_bytes: int) -> list[Bucket]:
    """Ranges of the arena in the order in which they are finished, each with the number of the node behind it.

    The arena has the gradients in the order in which they come to be, so that a range is finished with its last; the
    statistics and the loss are its end. Without an exchange there are none.
    """
    graph, exchange = training.graph, training.exchange
    if exchange is None:
        return []
    elements = graph.values[exchange.total].elements
    written = sorted(
        (graph.place(value)[1], index)
        for index, node in enumerate(micro_batch(training, exchange))
        for value in node.outputs.values()
        if graph.base(value) == exchange.written
    )
    starts = [start for start, _ in written]
    found: list[Bucket] = []
    first, done = 0, 0
    for place, (_, index) in enumerate(written):
        done = max(done, index)
        end = starts[place + 1] if place + 1 < len(written) else elements
        if (end - first) * DTYPES["f32"].itemsize >= bucket_bytes or end == elements:
            found.append((done, (first, end)))
            first = end
    return _merged(found)


def beside_exchange(
    training: Training, bucket_bytes: int, expected_s: Callable[[Node], float], fewer_s: Callable[[Node], float]
) -> list[str]:
    """The nodes that gain by leaving the exchange that they begin beside its multiprocessors.

    A grid as large as the device else waits in part until that is through. `fewer_s` is a node's time on those left,
    `expected_s` on all. There are none where the exchange waits for all micro-batches.
    """
    exchange = training.exchange
    if exchange is None or exchange.adds:
        return []
    due, now_s, until_s = dict(buckets(training, bucket_bytes)), 0.0, 0.0
    found: list[str] = []
    for index, node in enumerate(micro_batch(training, exchange)):
        whole_s = expected_s(node)
        if now_s < until_s and SURELY * (fewer_s(node) - whole_s) <= min(until_s - now_s, whole_s):
            found.append(node.name)
        now_s += whole_s
        if index in due:
            first, end = due[index]
            until_s = max(now_s, until_s) + BEGIN_S + (end - first) * DTYPES["f32"].itemsize / BYTES_PER_S
    return found


def _merged(found: Sequence[Bucket]) -> list[Bucket]:
    """Ranges that the same node finishes as one: statistics and loss lie behind gradients, and come before them."""
    merged: list[Bucket] = []
    for index, (first, end) in found:
        if merged and merged[-1][0] >= index:
            merged[-1] = (merged[-1][0], (merged[-1][1][0], end))
        else:
            merged.append((index, (first, end)))
    return merged
