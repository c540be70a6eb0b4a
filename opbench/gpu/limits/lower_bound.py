"""The lower bound of a case's time: no kernel can be faster than the measured peaks allow."""

from __future__ import annotations

from enum import StrEnum

from opbench import units
from opbench.gpu.limits.ceilings import LEVELS, Peaks, datasheet
from opbench.kernels.case import Case

BOUND_MARGIN = 0.95
"""A time counts as impossible below this share of its lower bound: clocks vary by a few per cent."""
L2_MARGIN = 0.75
"""The same share for the L2 cache, whose probe comes less close to the hardware's rate than the probe of DRAM."""


COLD_MODES = ("cold", "dirty")
"""Modes of timing in which the L2 cache is flushed before each launch."""
COLD_TOLERANCE = 1.10
"""After a flush, the rate of the compulsory traffic may exceed the measured peak by at most this factor: the peak is
that of one mix of reads and writes, and clocks vary. No committed run of an H200 passes 1.03."""
WRITES_REACH_DRAM = ("H100", "H200")
"""GPUs whose written bytes all count after a flush. On an H200, no cold run of any size passes 103 % of the peak for
the whole traffic, even if the outputs fit in the L2 cache. For other GPUs this is not measured: written bytes may
stay in the L2 cache, up to its size, and reach DRAM after the timed interval."""


def bytes_left_in_l2(written_bytes: int, gpu: str, l2_bytes: int | None) -> int:
    """Return how many written bytes may still be in L2, not yet in DRAM, when a launch with a cold L2 ends."""
    return 0 if any(gpu_name in gpu for gpu_name in WRITES_REACH_DRAM) else min(written_bytes, l2_bytes or 0)


def lower_bound_s(case: Case, limits: Peaks | None, mode: str = "cold") -> tuple[float, str]:
    """Return the lower bound of a case's time, and the peak that sets it; 0 without known peaks.

    After an L2 flush every compulsory read comes from DRAM, and every write goes to DRAM except
    `bytes_left_in_l2`. In other modes, bytes that fit in the L2 cache may not reach DRAM within the timed
    interval, so only bytes beyond its size count. All bytes pass the L2 cache, because the L1 caches keep
    nothing from the launch before.
    """
    if not limits:
        return 0.0, ""
    problem, unit = case.problem, case.unit
    nbytes = problem.bytes()
    bounds = [(0.0, "")]
    if limits.l1_bytes_per_s and problem.memory_level == "l1":
        bounds.append((BOUND_MARGIN * nbytes / limits.l1_bytes_per_s, "measured bandwidth of shared memory"))
    elif limits.l2_bytes_per_s:
        margin = BOUND_MARGIN if problem.memory_level == "l2" else L2_MARGIN
        bounds.append((margin * nbytes / limits.l2_bytes_per_s, "measured L2 bandwidth"))
    if limits.dram_bytes_per_s and problem.memory_level == "dram":
        bytes_beyond_l2, level = max(0, nbytes - (limits.l2_bytes or 0)), problem.bandwidth()
        bandwidth = limits.at_level(level).dram_bytes_per_s or limits.dram_bytes_per_s
        bounds.append((BOUND_MARGIN * bytes_beyond_l2 / bandwidth, f"measured {LEVELS[level]} bandwidth"))
        if mode in COLD_MODES:
            written_bytes = sum(tensor.nbytes for tensor in problem.output_tensors())
            dram_bytes = nbytes - min(nbytes, bytes_left_in_l2(written_bytes, limits.gpu, limits.l2_bytes))
            bounds.append(
                (dram_bytes / bandwidth / COLD_TOLERANCE, f"measured {LEVELS[level]} bandwidth after an L2 flush")
            )
    # For a precision class that was not measured, use the datasheet's rate: no kernel passes that either.
    for peaks, peaks_source in ((limits, "measured"), (datasheet(limits.gpu), "datasheet's")):
        if problem.flops_are_a_floor and peaks and (rate := peaks.flops_per_s(unit)):
            bounds.append((BOUND_MARGIN * problem.flops() / rate, f"{peaks_source} {units.unit(unit)} rate"))
            break
    return max(bounds)


# Above the peak ---------------------------------------------------------------------------------------------------


class AbovePeak(StrEnum):
    """The reason why a time is shorter than its lower bound."""

    FEWER_FLOPS = "FLOPs counted by the textbook algorithm; this one needs fewer"
    IN_L2 = "some bytes stay in the L2 cache; the peak counts them as DRAM traffic"
    ONE_WAY = "peak measured with a copy; a kernel that mostly reads or mostly writes can exceed it"
    MIX = "within 10 %: the peak varies that much with the mix of reads and writes"
    SCATTER = "within 5 %: clocks vary that much from run to run"
    IMPOSSIBLE = "impossible: faster than the measured peaks allow"


BALANCED_DEVIATION = 0.1
"""If the written share of the bytes differs from 1/2 by less than this, a kernel counts as a copy."""
SHOWN_ABOVE_PEAK = 1.005
"""Reports state the reason for a share of the peak from this value on, which is printed as more than 100 %."""


def why_above_peak(
    share: float,
    bound: str,
    level: str,
    nbytes: int,
    flops_are_a_floor: bool,
    ceilings: Peaks,
    mode: str,
    written_bytes: int | None,
) -> AbovePeak | None:
    """Return why a `share` of a peak exceeds 100 %; None if it does not.

    `bound` is "memory" or "compute"; `level` names the bandwidth whose peak is used; `nbytes` are compulsory,
    of which `written_bytes` are outputs (None in older runs); `mode` is how the time was taken.
    """
    if share < SHOWN_ABOVE_PEAK:
        return None
    if bound == "compute":
        if not flops_are_a_floor:
            return AbovePeak.FEWER_FLOPS
        return AbovePeak.SCATTER if share <= 1 / BOUND_MARGIN else AbovePeak.IMPOSSIBLE
    one_way = max(ceilings.dram_read_bytes_per_s or 0, ceilings.dram_write_bytes_per_s or 0)
    is_one_way = level == "dram" and ceilings.dram_bytes_per_s and share <= one_way / ceilings.dram_bytes_per_s
    if written_bytes is not None and abs(written_bytes / nbytes - 0.5) < BALANCED_DEVIATION:
        is_one_way = False  # The kernel reads and writes equally much, as a copy.
    is_dram, l2_bytes = level.startswith("dram"), ceilings.l2_bytes or 0
    if is_dram and mode in COLD_MODES:
        if is_one_way and share <= COLD_TOLERANCE:
            return AbovePeak.ONE_WAY
        if share <= COLD_TOLERANCE:
            return AbovePeak.SCATTER if share <= 1 / BOUND_MARGIN else AbovePeak.MIX
        dram_bytes = nbytes - min(
            nbytes, bytes_left_in_l2(nbytes if written_bytes is None else written_bytes, ceilings.gpu, l2_bytes)
        )
        return AbovePeak.IN_L2 if share * dram_bytes / nbytes <= COLD_TOLERANCE else AbovePeak.IMPOSSIBLE
    if is_dram and nbytes <= l2_bytes:
        return AbovePeak.IN_L2
    if is_one_way:
        return AbovePeak.ONE_WAY
    if share <= 1 / BOUND_MARGIN:
        return AbovePeak.SCATTER
    if is_dram and share * (nbytes - l2_bytes) / nbytes <= 1 / BOUND_MARGIN:
        return AbovePeak.IN_L2
    return AbovePeak.IMPOSSIBLE
