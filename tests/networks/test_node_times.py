"""What a network's record keeps of its nodes' times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from opbench.backend.base import DeviceClock
from opbench.networks.plan.executor import Context
from opbench.networks.plan.node_times import MAX_CHAINS, node_samples, node_times
from opbench.timing import stats


class Chains:
    """A clock whose chain number i takes 5 + i µs for the first node and 1 µs, its own event's cost, for the second."""

    gap_between_launches_s = 1e-6

    def __init__(self) -> None:
        self.number = 0

    def chain(self, launches: list[object]) -> list[float]:
        self.number += 1
        assert launches == [0, 1]
        return [(5 + self.number) * 1e-6, 0.9e-6]


def test_each_chain_is_a_sample_of_each_node_without_the_events_cost() -> None:
    context = cast(Context, SimpleNamespace(launches={"conv1": 0, "relu1": 1}))
    samples = node_samples(context, cast(DeviceClock, Chains()))
    assert samples["conv1"] == pytest.approx([(5 + i) * 1e-6 for i in range(MAX_CHAINS)])
    assert samples["relu1"] == [0.0] * MAX_CHAINS, "no time is below 0"
    assert stats.median_interval(samples["conv1"]).coverage >= 0.95, "as many as an interval needs"
    assert node_times(node_samples(context, cast(DeviceClock, Chains())))["conv1"] == pytest.approx(
        (5 + MAX_CHAINS // 2) * 1e-6
    )
