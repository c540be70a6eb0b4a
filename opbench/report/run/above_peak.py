"""Sentences that explain why a percentage of peak exceeds 100 %."""

from __future__ import annotations

from collections.abc import Iterable

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.gpu.limits.lower_bound import AbovePeak
from opbench.results.rows import Row

MAX_NAMED = 3
"""Most rows named under one reason; for more, only their number is shown."""


def above_peak_sentences(rows: Iterable[Row], ceilings: Peaks | None) -> dict[AbovePeak, str]:
    """Return a sentence for each reason why rows exceed 100 % of peak, the highest percentage first."""
    result: dict[AbovePeak, list[Row]] = {}
    for row in sorted(rows, key=lambda row: -(row.peak_share or 0.0)):
        if row.above_peak:
            result.setdefault(AbovePeak(row.above_peak), []).append(row)
    return {reason: f"{_names(above)}: {_why(reason, above[0], ceilings)}." for reason, above in result.items()}


def footnote_marks(reasons: Iterable[str]) -> dict[str, str]:
    """Return the footnote mark of each reason, such as "1"; equal reasons share a mark."""
    return {reason: str(mark) for mark, reason in enumerate(dict.fromkeys(filter(None, reasons)), 1)}


def _names(rows_above: list[Row]) -> str:
    """Return the rows above peak, such as "`fft` at 224 % of peak and 2 more"; each variant appears once."""
    best = list({row.variant: row for row in reversed(rows_above)}.values())[::-1]
    percentages = [
        f"`{row.variant.replace('`', chr(39))}` at {units.percent(row.peak_share)}" for row in best[:MAX_NAMED]
    ]
    more_text = f" and {len(best) - MAX_NAMED} more" if len(best) > MAX_NAMED else ""
    return f"{', '.join(percentages)}{more_text} of peak"


def _why(reason: AbovePeak, row: Row, ceilings: Peaks | None) -> str:
    peaks = ceilings or Peaks()
    if reason is AbovePeak.FEWER_FLOPS:
        return (
            "FLOPs are counted by the textbook algorithm, and an algorithm with fewer FLOPs, such as Winograd or FFT, "
            "can exceed the peak; the algorithm that ran is unknown"
        )
    if reason is AbovePeak.IN_L2:
        size = units.si(peaks.l2_bytes, "B")
        return (
            f"the peak counts every byte as DRAM traffic, but up to {size} may stay in the L2 cache: written bytes "
            "after an L2 flush, any bytes in other modes"
        )
    if reason is AbovePeak.ONE_WAY:
        one_way_rates = [
            f"{direction} alone {units.byte_rate(rate)}"
            for direction, rate in (("reads", peaks.dram_read_bytes_per_s), ("writes", peaks.dram_write_bytes_per_s))
            if rate
        ]
        copy_rate = units.byte_rate(peaks.dram_bytes_per_s)
        rates = ", ".join(one_way_rates)
        return f"peak measured with a copy ({copy_rate}); a kernel that mostly reads or writes can exceed it ({rates})"
    if reason in (AbovePeak.MIX, AbovePeak.SCATTER):
        return reason.value
    return (
        f"impossible. {units.time(row.time_s)} is less than the measured peaks allow: the kernel did not do the "
        "work, or the stored peaks are out of date (measure them again: `opbench ceiling`)"
    )
