"""How long a network's nodes take among the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from opbench.backend.base import DeviceClock
from opbench.networks.plan.executor import Context
from opbench.timing.clock import Turns
from opbench.timing.sampling import TimingOptions

TIMING = TimingOptions(budget_s=2.0, max_samples=200)
CHAINS = 15
"""How often the nodes are timed one by one; the median counts."""


def node_samples(context: Context, clock: DeviceClock, turns: Turns | None = None) -> dict[str, list[float]]:
    """Each node's own times among the others, its input where the node before left it: a sample in s of each chain.

    `turns` renew the network before each chain, and may judge what it leaves.
    """
    chains = []
    for _ in range(CHAINS):
        if turns:
            turns.next_launch()
        chains.append(clock.chain(list(context.launches.values())))
        if turns:
            turns.sampled()
    return {name: [max(0.0, chain[i] - clock.between) for chain in chains] for i, name in enumerate(context.launches)}


def node_times(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each node's median of its `node_samples`."""
    return {name: statistics.median(times) for name, times in samples.items()}
