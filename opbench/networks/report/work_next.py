"""The nodes of a network with the most time above their lower bounds, and commands to improve them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from opbench import units
from opbench.networks.records.network import NodeGroup, Record, grouped_nodes, nodes_by_time, recoverable_s, variant_of

MAX_WORK_NODES = 3
"""Most cases for which commands are printed."""


@dataclass(frozen=True)
class WorkNode(NodeGroup):
    """Nodes with the same case, and the time that a kernel at the lower bound would save."""

    recoverable_s: float
    """Seconds above the lower bound, summed over `nodes`."""
    share: float
    """Part of the time of all nodes of the network, from 0 to 1."""
    commands: tuple[str, ...]
    """Commands that show where the time goes and what to change."""

    @property
    def sentence(self) -> str:
        """Return a sentence on the nodes: time, lower bound and variant."""
        node = self.nodes[0]
        return (
            f"{self.name}: {units.time(self.kernel_s)}, lower bound {units.time(self.bound_s)} ({node.bound}): "
            f"{units.time(self.recoverable_s)} above it, {units.percent(self.share)} of all nodes; "
            f"{node.operator}/{''.join(variant_of(node))}"
        )


def work_nodes(record: Record, run: str = ".") -> list[WorkNode]:
    """Return the nodes with the most time above their lower bounds, most first; none without times or bounds.

    Nodes rank by time x (1 - bound / time); nodes with the same case, such as those of equal layers, count together.
    `run` is the run's folder as the commands name it.
    """
    total = sum(node.kernel_s or 0.0 for node in record.nodes)
    above_bound = [node for node in nodes_by_time(record) if recoverable_s(node) > 0]
    groups = grouped_nodes(above_bound, lambda node: node.case)
    ranked = sorted(((sum(map(recoverable_s, nodes)), nodes) for nodes in groups), key=lambda one: -one[0])
    return [
        WorkNode(
            nodes,
            saved_s,
            saved_s / total,
            (shlex.join(["opbench", "explain", nodes[0].case]), shlex.join(["opbench", "advise", run, nodes[0].case])),
        )
        for saved_s, nodes in ranked[:MAX_WORK_NODES]
    ]
