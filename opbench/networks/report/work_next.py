"""The nodes of a network that are worth work next: the time above their lower bounds, and the commands to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from opbench import units
from opbench.networks.records.network import NodeRecord, Record, recoverable_s, variant_of

MOST = 3
"""Number of nodes that are named."""


@dataclass(frozen=True)
class WorkNode:
    """A node with the time that a kernel at its lower bound would save."""

    node: NodeRecord
    recoverable_s: float
    share: float
    """Of the time of all nodes."""
    commands: tuple[str, ...]
    """Commands that show where the time goes and what to change."""

    @property
    def sentence(self) -> str:
        """Return the node with its time, lower bound and variant."""
        node = self.node
        return (
            f"{node.name}: {units.time(node.kernel_s)}, lower bound {units.time(node.bound_s)} ({node.bound}): "
            f"{units.time(self.recoverable_s)} above it, {units.percent(self.share)} of the network; "
            f"{node.operator}/{''.join(variant_of(node))}"
        )


def work_nodes(record: Record, run: str = ".") -> list[WorkNode]:
    """Return the nodes with the most time above their lower bounds, most first; none without times or bounds.

    Nodes rank by time x (1 - bound / time). `run` is the run's folder as the commands name it.
    """
    total = sum(node.kernel_s or 0.0 for node in record.nodes)
    ranked = sorted((node for node in record.nodes if recoverable_s(node) > 0), key=lambda node: -recoverable_s(node))
    return [
        WorkNode(
            node,
            recoverable_s(node),
            recoverable_s(node) / total,
            (shlex.join(["opbench", "explain", node.case]), shlex.join(["opbench", "advise", run, node.case])),
        )
        for node in ranked[:MOST]
    ]
