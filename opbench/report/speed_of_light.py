"""Bars that compare the lower bound of each GPU limit with the measured time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opbench import units
from opbench.insight.levels import LIMIT_NAMES, Bound

BAR_WIDTH = 14
"""Characters of a full bar on a terminal."""
SOURCES = {
    "l1": "bytes counted", "l2": "bytes predicted", "dram": "bytes predicted, cold",
    "compulsory": "each byte moved once",
}  # fmt: skip


@dataclass(frozen=True)
class LimitBar:
    """One bar: a limit and the lower bound of the time that it sets."""

    name: str
    time_s: float
    share: float
    """Time divided by the measured one or, without one, by the longest bound; at most 1."""
    note: str
    """How the work was counted, and where the limit comes from."""
    measured: bool = False

    @property
    def text(self) -> str:
        """Draw the bar with characters."""
        return "█" * max(1, round(BAR_WIDTH * self.share))

    @property
    def percent(self) -> str:
        """Return the share of the measured time, such as "74 %"."""
        return units.percent(self.share)


PROFILED = "by the profiler, caches cold"


def limit_bars(
    bounds: Sequence[Bound], measured_s: float | None = None, counted: bool = False, measured_by: str = PROFILED
) -> list[LimitBar]:
    """Return a bar for the measured time, if any, then one for each limit, the highest lower bound first.

    `counted` means that hardware counters measured all bytes.
    """
    full_scale_s = measured_s or max((bound.time_s for bound in bounds), default=0.0)
    if not full_scale_s:
        return []
    rows = [LimitBar("measured", measured_s, 1.0, measured_by, True)] if measured_s else []
    for bound in bounds:
        share = min(1.0, bound.time_s / full_scale_s)
        rows.append(LimitBar(LIMIT_NAMES[bound.limit], bound.time_s, share, note(bound, counted)))
    return rows


def note(bound: Bound, counted: bool = False) -> str:
    """Return how the work of a bound was determined, and where its peak comes from.

    "≥ 723 k instructions" are at least so many, by a model; "723 k instructions" are counted.
    """
    work = "bytes counted" if counted and bound.limit in ("l1", "l2", "dram") else SOURCES.get(bound.limit, "")
    if bound.instructions is not None:
        least = "" if bound.counts == "counted" else "≥ "
        unit = "FLOP" if bound.limit == "tensor" else " instructions"
        work = f"{least}{units.si(bound.instructions, unit)}".replace("  ", " ")
    return "; ".join(filter(None, (work, f"{bound.source} peak")))
