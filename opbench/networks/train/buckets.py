"""Split the gradients of a step into buckets that GPUs exchange while other nodes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opbench.graph.training_step import Exchange, Training
from opbench.graph.values import Node
from opbench.kernels.tensors import DTYPES

Bucket = tuple[int, tuple[int, int]]
"""The number of the node that completes a range of the arena, and the range."""
BYTES_PER_S, START_S = 180e9, 10e-6
"""Bandwidth and latency of an exchange between two H200s with twelve blocks (200 MB in 0.96 ms).

They only decide which nodes run at the same time; do not quote them.
"""

GAIN_FACTOR = 2
"""The gain must be this many times the cost: an exchange often ends earlier than expected, and then the cost remains.
"""


def micro_batch(training: Training, exchange: Exchange) -> list[Node]:
    """Return the nodes of one micro-batch, without those that sum gradients or run once per step."""
    return [n for n in training.graph.nodes if n.name not in exchange.nodes_per_step and n.name != exchange.adding_node]


def gradient_buckets(training: Training, bucket_bytes: int) -> list[Bucket]:
    """Return ranges of the gradients in order of completion, each with the number of the node that completes it.

    Gradients are in the arena in the order in which they are computed, so a range is complete when its last one
    is. The end of the arena holds the statistics and the loss. Without an exchange there are no ranges.
    """
    graph, exchange = training.graph, training.exchange
    if exchange is None:
        return []
    elements = graph.values[exchange.total_state].elements
    written = sorted(
        (graph.memory_range(value)[1], index)
        for index, node in enumerate(micro_batch(training, exchange))
        for value in node.outputs.values()
        if graph.base(value) == exchange.written_state
    )
    starts = [start for start, _ in written]
    new_buckets: list[Bucket] = []
    range_start, last_node = 0, 0
    for position, (_, index) in enumerate(written):
        last_node = max(last_node, index)
        end = starts[position + 1] if position + 1 < len(written) else elements
        if (end - range_start) * DTYPES["f32"].itemsize >= bucket_bytes or end == elements:
            new_buckets.append((last_node, (range_start, end)))
            range_start = end
    return _merge_ranges(new_buckets)


def overlapped_buckets(
    training: Training,
    bucket_bytes: int,
    expected_s: Callable[[Node], float],
    expected_s_on_fewer: Callable[[Node], float],
) -> list[str]:
    """Return the nodes that should leave some multiprocessors to an exchange that runs at the same time.

    Otherwise a grid as large as the device waits in part until the exchange ends. `expected_s_on_fewer` is the time of
    a node in seconds on the remaining multiprocessors, `expected_s` on all. The list is empty if the exchange
    waits for all micro-batches.
    """
    exchange = training.exchange
    if exchange is None or exchange.adding_node:
        return []
    range_by_node, now_s, until_s = dict(gradient_buckets(training, bucket_bytes)), 0.0, 0.0
    names: list[str] = []
    for index, node in enumerate(micro_batch(training, exchange)):
        node_s = expected_s(node)
        if now_s < until_s and GAIN_FACTOR * (expected_s_on_fewer(node) - node_s) <= min(until_s - now_s, node_s):
            names.append(node.name)
        now_s += node_s
        if index in range_by_node:
            start, end = range_by_node[index]
            until_s = max(now_s, until_s) + START_S + (end - start) * DTYPES["f32"].itemsize / BYTES_PER_S
    return names


def _merge_ranges(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Merge ranges that the same node completes."""
    merged: list[Bucket] = []
    for index, (start, end) in buckets:
        if merged and merged[-1][0] >= index:
            merged[-1] = (merged[-1][0], (merged[-1][1][0], end))
        else:
            merged.append((index, (start, end)))
    return merged
