"""Check whether stored peaks are still valid: measure two of their probes again at the start of a run."""

from __future__ import annotations

from collections.abc import Mapping

from opbench import units
from opbench.gpu.limits.ceilings import CeilingCheck, CheckedLimit, Peaks
from opbench.timing.sampling import TimingOptions

CHECKED_LIMITS = {"dram_bytes_per_s": "DRAM copy", "fp32_flops_per_s": "fp32 FMA"}
"""The checked peaks: a clock limit or another program that lowers other peaks also lowers one of these."""
MAX_DEVIATION = 0.03
"""The largest accepted deviation of a measured rate; processes on an idle GPU differ by less."""
PROBE_TIMING = TimingOptions(max_samples=30, budget_s=0.2)
"""The timing of the checked probes."""


def probe_cases(ceilings: Peaks) -> dict[str, str]:
    """Return the probe case of each checked peak; empty if the peaks are from a datasheet."""
    return {
        limit: ceilings.cases[limit] for limit in CHECKED_LIMITS if getattr(ceilings, limit) and limit in ceilings.cases
    }


def check_ceilings(ceilings: Peaks, measured_rates: Mapping[str, float]) -> CeilingCheck:
    """Compare rates that were measured now, by the name of the peak, with the stored peaks."""
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
