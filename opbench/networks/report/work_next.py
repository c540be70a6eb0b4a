"""The nodes of a network with the most time above their lower bounds, and commands to improve them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from opbench import units
from opbench.networks.records.network import NodeRecord, Record, recoverable_s, variant_of

MAX_WORK_NODES = 3
"""Most cases for which commands are printed."""


@dataclass(frozen=True)
class WorkNode:
    """Nodes with the same case, and the time that a kernel at the lower bound would save."""

    nodes: tuple[NodeRecord, ...]
    """The slowest first."""
    recoverable_s: float
    """Seconds above the lower bound, summed over `nodes`."""
    share: float
    """Part of the time of all nodes of the network, from 0 to 1."""
    commands: tuple[str, ...]
    """Commands that show where the time goes and what to change."""

    @property
    def name(self) -> str:
        """Return the name of the first node, and the number of other nodes with the same case."""
        other_nodes = len(self.nodes) - 1
        return self.nodes[0].name + (f" and {other_nodes} more" if other_nodes else "")

    @property
    def kernel_s(self) -> float:
        """Return the total time of the nodes in seconds."""
        return sum(node.kernel_s or 0.0 for node in self.nodes)

    @property
    def bound_s(self) -> float:
        """Return the total lower bound of the nodes in seconds."""
        return sum(node.bound_s or 0.0 for node in self.nodes)

    @property
    def sentence(self) -> str:
        """Return a sentence on the nodes: time, lower bound and variant."""
        node = self.nodes[0]
        return (
            f"{self.name}: {units.time(self.kernel_s)}, lower bound {units.time(self.bound_s)} ({node.bound}): "
            f"{units.time(self.recoverable_s)} above it, {units.percent(self.share)} of the network; "
            f"{node.operator}/{''.join(variant_of(node))}"
        )


def work_nodes(record: Record, run: str = ".") -> list[WorkNode]:
    """Return the nodes with the most time above their lower bounds, most first; none without times or bounds.

    Nodes rank by time x (1 - bound / time); nodes with the same case, such as those of equal layers, count together.
    `run` is the run's folder as the commands name it.
    """
    total = sum(node.kernel_s or 0.0 for node in record.nodes)
    by_case: dict[str, list[NodeRecord]] = {}
    for node in sorted(record.nodes, key=lambda node: -(node.kernel_s or 0.0)):
        if recoverable_s(node) > 0:
            by_case.setdefault(node.case, []).append(node)
    ranked = sorted(by_case.items(), key=lambda item: -sum(map(recoverable_s, item[1])))
    return [
        WorkNode(
            tuple(nodes),
            saved := sum(map(recoverable_s, nodes)),
            saved / total,
            (shlex.join(["opbench", "explain", case]), shlex.join(["opbench", "advise", run, case])),
        )
        for case, nodes in ranked[:MAX_WORK_NODES]
    ]
