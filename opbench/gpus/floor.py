"""The physical floor under a time: what the measured ceilings do not allow any kernel to undercut."""

from __future__ import annotations

from enum import StrEnum

from opbench import units
from opbench.catalog.case import Case
from opbench.gpus.ceilings import LEVELS, Ceilings, datasheet

FLOOR_MARGIN = 0.95
"""A time may be this much below the floor before it is called impossible: clocks vary by a few per cent."""
L2_MARGIN = 0.75
"""The same where the L2 cache is the limit, whose probe comes less close to what the hardware can than DRAM's does."""


def floor_s(case: Case, ceilings: dict[str, object] | None) -> tuple[float, str]:
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


# Above the roof ---------------------------------------------------------------------------------------------------


class Above(StrEnum):
    """Why a time is shorter than the roof allows, as far as the data tell."""

    FEWER_FLOPS = "fewer FLOPs than the textbook's"
    IN_L2 = "L2 holds some of it"
    ONE_WAY = "the roof is a copy's"
    SCATTER = "within the 5 % that clocks vary"
    IMPOSSIBLE = "no result: faster than the ceilings allow"


ABOVE = 1.005
"""From this share of the roof on, which is printed as more than 100 %, a row says why."""


def why_above(
    share: float, bound: str, level: str, nbytes: int, flops_are_a_floor: bool, ceilings: Ceilings
) -> Above | None:
    """Why `share` of the roof of `bound` ("memory" or "compute") passes 100 %; None where it does not.

    `level` names the bandwidth that the roof is of, `nbytes` are compulsory.
    """
    if share < ABOVE:
        return None
    if bound == "compute":
        if not flops_are_a_floor:
            return Above.FEWER_FLOPS
        return Above.SCATTER if share <= 1 / FLOOR_MARGIN else Above.IMPOSSIBLE
    cached = ceilings.l2_bytes or 0
    if level.startswith("dram") and nbytes <= cached:
        return Above.IN_L2
    one_way = max(ceilings.dram_read_bytes_per_s or 0, ceilings.dram_write_bytes_per_s or 0)
    if level == "dram" and ceilings.dram_bytes_per_s and share <= one_way / ceilings.dram_bytes_per_s:
        return Above.ONE_WAY
    if share <= 1 / FLOOR_MARGIN:
        return Above.SCATTER
    if level.startswith("dram") and share * (nbytes - cached) / nbytes <= 1 / FLOOR_MARGIN:
        return Above.IN_L2
    return Above.IMPOSSIBLE
