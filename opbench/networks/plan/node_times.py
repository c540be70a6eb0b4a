"""Time the nodes of a network while the whole network runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from opbench.backend.base import DeviceClock
from opbench.networks.plan.executor import Context
from opbench.timing.clock import LaunchSource
from opbench.timing.sampling import TimingOptions

TIMING = TimingOptions(budget_s=2.0, max_samples=200)
MAX_CHAINS = 15
"""Number of passes over the nodes, which are timed one by one; the median counts."""


def node_samples(
    context: Context, clock: DeviceClock, launch_source: LaunchSource | None = None
) -> dict[str, list[float]]:
    """Return the times of each node within the network, in seconds, one sample per pass.

    A node finds its input in the caches as the node before left it. `launch_source` renew the network before each pass,
    and may check its results.
    """
    passes = []
    for _ in range(MAX_CHAINS):
        if launch_source:
            launch_source.next_launch()
        passes.append(clock.chain(list(context.launches.values())))
        if launch_source:
            launch_source.after_sample()
    return {
        name: [max(0.0, pass_times[i] - clock.gap_between_launches_s) for pass_times in passes]
        for i, name in enumerate(context.launches)
    }


def node_times(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median time of each node in seconds, from the samples by node."""
    return {name: statistics.median(times) for name, times in samples.items()}
