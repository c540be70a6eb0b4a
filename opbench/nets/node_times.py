"""How long a network's nodes take among the others."""

from __future__ import annotations

import statistics

from opbench.backends.base import DeviceClock
from opbench.nets.executor import Context
from opbench.timing.sampling import TimingOptions

TIMING = TimingOptions(budget_s=2.0, max_samples=200)
CHAINS = 15
"""How often the nodes are timed one by one; the median counts."""


def node_times(context: Context, clock: DeviceClock) -> dict[str, float]:
    """Each node's own time among the others, its input where the node before left it."""
    names = list(context.launches)
    chains = [clock.chain(list(context.launches.values())) for _ in range(CHAINS)]
    medians = (statistics.median(chain[i] for chain in chains) for i in range(len(names)))
    return {name: max(0.0, seconds - clock.between) for name, seconds in zip(names, medians, strict=True)}
