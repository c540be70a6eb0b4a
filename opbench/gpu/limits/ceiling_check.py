"""Check whether stored peaks are still valid: measure two of their probes again at the start of a run."""

from __future__ import annotations

from collections.abc import Mapping

from opbench import units
from opbench.gpu.limits.ceilings import CeilingCheck, CheckedLimit, Peaks
from opbench.timing.sampling import TimingOptions

CHECKED_LIMITS = {"dram_bytes_per_s": "DRAM copy", "fp32_flops_per_s": "fp32 FMA"}
"""Memory and arithmetic: a driver, a clock limit or another user that changes other limits changes one of these."""
MAX_DEVIATION = 0.03
"""Larger than the differences between separate processes on an idle GPU."""
TIMING = TimingOptions(max_samples=30, budget_s=0.2)


def probe_cases(ceilings: Peaks) -> dict[str, str]:
    """Return the probe case of each checked limit; none unless the peaks were measured."""
    return {n: ceilings.cases[n] for n in CHECKED_LIMITS if getattr(ceilings, n) and n in ceilings.cases}


def check_ceilings(ceilings: Peaks, seen: Mapping[str, float]) -> CeilingCheck:
    """Compare rates that were measured now with the stored peaks."""
    checked = tuple(
        CheckedLimit(name, ceilings.cases[name], rate, rate / getattr(ceilings, name) - 1)
        for name, rate in seen.items()
    )
    odd = [entry for entry in checked if abs(entry.off) > MAX_DEVIATION]
    if not odd:
        return CeilingCheck(checked)
    show = {"dram_bytes_per_s": units.byte_rate, "fp32_flops_per_s": units.flop_rate}
    rates = ", ".join(
        f"{CHECKED_LIMITS[e.limit]} {show[e.limit](e.seen)} ({100 * e.off:+.1f} %)".replace("-", "−") for e in odd
    )
    message = (
        f"the stored peaks are out of date: {rates} at the start of this run, more than {100 * MAX_DEVIATION:g} % "
        "off; percentages use the stored peaks. See what else uses the GPU or limits its clocks "
        "(nvidia-smi), then measure the peaks again: opbench ceiling"
    )
    return CeilingCheck(checked, message)
