"""Check whether stored peaks are still valid: measure two of their probes again at the start of a run."""

from __future__ import annotations

from collections.abc import Mapping

from opbench import units
from opbench.gpu.limits.ceilings import CeilingCheck, CheckedLimit, Peaks
from opbench.timing.sampling import TimingOptions

CHECKED_LIMITS = {"dram_bytes_per_s": "DRAM copy", "fp32_flops_per_s": "fp32 FMA"}
"""The checked limits: whatever lowers other peaks, such as a clock limit or another user, lowers one of these."""
MAX_DEVIATION = 0.03
"""Larger than the differences between separate processes on an idle GPU."""
TIMING = TimingOptions(max_samples=30, budget_s=0.2)


def probe_cases(ceilings: Peaks) -> dict[str, str]:
    """Return the probe case of each checked limit; none unless the peaks were measured."""
    return {
        limit: ceilings.cases[limit] for limit in CHECKED_LIMITS if getattr(ceilings, limit) and limit in ceilings.cases
    }


def check_ceilings(ceilings: Peaks, measured_rates: Mapping[str, float]) -> CeilingCheck:
    """Compare the rates that were measured now, by limit, with the stored peaks."""
    checked = tuple(
        CheckedLimit(name, ceilings.cases[name], rate, rate / getattr(ceilings, name) - 1)
        for name, rate in measured_rates.items()
    )
    deviating = [entry for entry in checked if abs(entry.off) > MAX_DEVIATION]
    if not deviating:
        return CeilingCheck(checked)
    format_rate = {"dram_bytes_per_s": units.byte_rate, "fp32_flops_per_s": units.flop_rate}
    rates = ", ".join(
        f"{CHECKED_LIMITS[entry.limit]} {format_rate[entry.limit](entry.seen)} ({100 * entry.off:+.1f} %)".replace(
            "-", "−"
        )
        for entry in deviating
    )
    message = (
        f"the stored peaks are out of date: {rates} at the start of this run, more than {100 * MAX_DEVIATION:g} % "
        "off; percentages use the stored peaks. See what else uses the GPU or limits its clocks "
        "(nvidia-smi), then measure the peaks again: opbench ceiling"
    )
    return CeilingCheck(checked, message)
