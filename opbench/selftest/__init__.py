"""Tests whether opbench measures correctly on this machine: `opbench selftest`.

All parts use a `SelftestDevice`, so tests can simulate the clock. `opbench.cli.selftest` adds a GPU, the reference
timers and the cheats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from opbench.errors import OpbenchError, UsageError, unknown_name
from opbench.results.selftest import Claim, Part, Selftest, Table
from opbench.selftest.cheats import cheats
from opbench.selftest.checks import check_floor, check_flush, check_stamps
from opbench.selftest.clocks import ReferenceTimer, clocks
from opbench.selftest.device import Cell, SelftestClock, SelftestDevice, untouched
from opbench.selftest.pairs import measure_identical_pairs, measure_slow_downs
from opbench.selftest.walltime import wall_time

__all__ = [
    "PARTS",
    "Cell",
    "Claim",
    "Part",
    "ReferenceTimer",
    "Selftest",
    "SelftestClock",
    "SelftestDevice",
    "Table",
    "cheats",
    "check_floor",
    "check_flush",
    "check_stamps",
    "clocks",
    "measure_identical_pairs",
    "measure_slow_downs",
    "run_parts",
    "untouched",
    "wall_time",
]  # fmt: skip

PARTS: Mapping[str, float] = {
    "floor": 0.03, "stamps": 0.03, "flush": 0.04, "aa": 0.35, "slowdown": 0.35, "clocks": 0.2, "wall": 0.0,
    "cheats": 0.0,
}  # fmt: skip
"""Parts in order, each with its share of the time budget; wall times and cheats have no budget."""

RunPart = Callable[[float], Part]
"""Runs one part within a number of seconds."""


def chosen_parts(only: str) -> list[str]:
    """Return the parts of a list such as "aa,flush" in the order in which they run; all parts for an empty list."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise UsageError(unknown_name("part", name, PARTS))
    return [name for name in PARTS if not names or name in names]


def run_parts(
    runs: Mapping[str, RunPart], names: Collection[str], outcome: Selftest, keep: Callable[[Selftest, Part], None]
) -> None:
    """Run the parts in order and pass each to `keep` when it ends; a failing part does not stop the others."""
    scale = outcome.budget_s / (sum(PARTS[name] for name in names) or 1.0)
    for name in names:
        start_s = time.perf_counter()
        try:
            part = runs[name](PARTS[name] * scale)
        except OpbenchError as error:
            part = Part(name, name, error=str(error))
        part.spent_s = time.perf_counter() - start_s
        outcome.parts.append(part)
        keep(outcome, part)
