"""Whether this machine and this harness measure what they say: `opbench selftest`.

Everything here runs over a `SelftestDevice`, so that it is tested with simulated clocks; `opbench.cli.selftest`
puts a GPU, the other clocks and the cheats behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from opbench.errors import OpbenchError, UsageError, unknown
from opbench.results.selftest import Claim, Part, Selftest, Table
from opbench.selftest.cheats import cheats
from opbench.selftest.checks import floor, flush, stamps
from opbench.selftest.clocks import Witness, clocks
from opbench.selftest.device import Cell, SelftestClock, SelftestDevice, untouched
from opbench.selftest.pairs import alike, slow_downs
from opbench.selftest.walltime import wall_time

__all__ = [
    "PARTS", "Cell", "Claim", "Part", "Selftest", "SelftestClock", "SelftestDevice", "Table", "Witness", "alike",
    "cheats", "clocks", "floor", "flush", "run_parts", "slow_downs", "stamps", "untouched", "wall_time",
]  # fmt: skip

PARTS: Mapping[str, float] = {
    "floor": 0.03, "stamps": 0.03, "flush": 0.04, "aa": 0.35, "slowdown": 0.35, "clocks": 0.2, "wall": 0.0,
    "cheats": 0.0,
}  # fmt: skip
"""In the order run, with the share of the budget; wall times and cheats take what they take."""

RunPart = Callable[[float], Part]
"""One part, given its seconds."""


def chosen_parts(only: str) -> list[str]:
    """The parts of a list such as "aa,flush", in the order run; all for an empty one."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise UsageError(unknown("part", name, PARTS))
    return [name for name in PARTS if not names or name in names]


def run_parts(
    runs: Mapping[str, RunPart],
    names: Collection[str],
    outcome: Selftest,
    keep: Callable[[Selftest, Part], None],
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Run the parts in order; each is handed to `keep` as soon as it ends, and one that dies costs itself only."""
    scale = outcome.budget_s / (sum(PARTS[name] for name in names) or 1.0)
    for name in names:
        began = now()
        try:
            part = runs[name](PARTS[name] * scale)
        except OpbenchError as error:
            part = Part(name, name, error=str(error))
        part.spent_s = now() - began
        outcome.parts.append(part)
        keep(outcome, part)
