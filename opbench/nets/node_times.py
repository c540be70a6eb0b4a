"""How long a network's nodes take among the others, and a step of its training."""

from __future__ import annotations

import statistics

from opbench.backends.base import Backend, DeviceClock, Timed
from opbench.decoding import to_json
from opbench.nets.executor import Context
from opbench.results.training import StepTimes
from opbench.timing.sampling import TimingOptions, measure

TIMING = TimingOptions(budget_s=2.0, max_samples=200)
CHAINS = 15
"""How often the nodes are timed one by one; the median counts."""


def node_times(context: Context, clock: DeviceClock) -> dict[str, float]:
    """Each node's own time among the others, its input where the node before left it."""
    names = list(context.launches)
    chains = [clock.chain(list(context.launches.values())) for _ in range(CHAINS)]
    medians = (statistics.median(chain[i] for chain in chains) for i in range(len(names)))
    return {name: max(0.0, seconds - clock.between) for name, seconds in zip(names, medians, strict=True)}


def step_times(context: Context, backend: Backend) -> StepTimes:
    """How long one more step of a training takes, where there is a clock, and each of its nodes.

    It trains on: whatever is to be kept is read before.
    """
    if not isinstance(backend, Timed):
        return {}
    launches = {"opbench": context.launch}
    cold, hot = (measure(backend.clock(mode), launches, TIMING)["opbench"] for mode in ("cold", "hot"))
    return {"cold": to_json(cold), "hot": to_json(hot), "nodes_s": node_times(context, backend.clock("cold"))}
