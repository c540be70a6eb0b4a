"""The counts of one source line as the cells of a table, in the terminal and on pages."""

from __future__ import annotations

from opbench import units
from opbench.backend.counts import ORIGIN_PREDICTED, BranchTraffic, LineTraffic
from opbench.insight.explain import AnnotatedLine, Explanation

ACCESS_COLUMNS = ("access", "requests", "lanes", "sectors", "conflicts", "collisions", "diverged")


def line_cells(explanation: Explanation, line: AnnotatedLine) -> list[list[str]]:
    """Return the cells of each access and of each branch in a line, for `ACCESS_COLUMNS`."""
    return [access_cells(explanation, label, access) for label, access in line.labelled_accesses] + [
        _branch_cells(explanation, branch) for branch in line.branches
    ]


def access_cells(explanation: Explanation, label: str, entry: LineTraffic) -> list[str]:
    """Return the cells of an access for `ACCESS_COLUMNS`; "≈" marks predicted counts."""
    sectors = f"{entry.sectors_per_request:.1f} of {entry.ideal_sectors_per_request:.1f}"
    return [
        label,
        f"{_predicted_mark(explanation, entry.kernel)}{entry.requests}",
        f"{entry.lanes_per_request:.1f}",
        sectors if entry.in_sectors else "",
        f"{entry.conflicts_per_request:.1f}" if entry.space == "shared" else "",
        str(entry.collisions) if entry.kind == "atomic" else "",
        "",
    ]


def _branch_cells(explanation: Explanation, entry: BranchTraffic) -> list[str]:
    """Return the cells of a branch; each execution by a warp counts as a request."""
    executions = f"{_predicted_mark(explanation, entry.kernel)}{entry.executions}"
    return ["branch", executions, "", "", "", "", units.percent(entry.share)]


def _predicted_mark(explanation: Explanation, kernel: str) -> str:
    return "≈" if explanation.count_source(kernel) == ORIGIN_PREDICTED else ""
