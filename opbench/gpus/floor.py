"""The physical floor under a time: what the measured ceilings do not allow any kernel to undercut."""

from __future__ import annotations

from typing import Any

from opbench import units
from opbench.catalog.case import Case
from opbench.gpus.ceilings import LEVELS, Ceilings, datasheet

FLOOR_MARGIN = 0.95
"""A time may be this much below the floor before it is called impossible: clocks vary by a few per cent."""
L2_MARGIN = 0.75
"""The same where the L2 cache is the limit, whose probe comes less close to what the hardware can than DRAM's does."""


def floor_s(case: Case, ceilings: dict[str, Any] | None) -> tuple[float, str]:
    """The shortest time that the measured ceilings allow, and the ceiling that sets it; 0 when none is known.

    Bytes that fit the L2 cache may never reach DRAM within the span, so only those beyond it count there; but all of
    them pass the L2 cache, as nothing is left in the L1 caches from the launch before.
    """
    if not ceilings:
        return 0.0, ""
    problem, unit = case.problem, case.unit
    nbytes, limits = problem.bytes(), Ceilings.from_json(ceilings)
    floors = [(0.0, "")]
    if limits.l1_bytes_per_s and problem.memory_level == "l1":
        floors.append((FLOOR_MARGIN * nbytes / limits.l1_bytes_per_s, "measured bandwidth of shared memory"))
    elif limits.l2_bytes_per_s:
        margin = FLOOR_MARGIN if problem.memory_level == "l2" else L2_MARGIN
        floors.append((margin * nbytes / limits.l2_bytes_per_s, "measured L2 bandwidth"))
    if limits.dram_bytes_per_s and problem.memory_level == "dram":
        beyond, level = max(0, nbytes - (limits.l2_bytes or 0)), problem.bandwidth()
        bandwidth = limits.at_level(level).dram_bytes_per_s or limits.dram_bytes_per_s
        floors.append((FLOOR_MARGIN * beyond / bandwidth, f"measured {LEVELS[level]} bandwidth"))
    # Where nobody measured a precision class, the datasheet's rate stands in, which nothing passes either.
    for known, whose in ((limits, "measured"), (datasheet(limits.gpu), "datasheet's")):
        if problem.flops_are_a_floor and known and (rate := known.flops_per_s(unit)):
            floors.append((FLOOR_MARGIN * problem.flops() / rate, f"{whose} {units.unit(unit)} rate"))
            break
    return max(floors)
