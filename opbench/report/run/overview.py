"""The first table of the page: every operator and problem with its fastest variant or predicted time."""

from __future__ import annotations

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.records import JSON
from opbench.report.run.sections import Section
from opbench.report.run.traffic_columns import CountedFigure, worst_conflicts, worst_sectors
from opbench.report.terminal import rate_text
from opbench.results.rows import Row


def overview(section: Section, anchor: str, predicting: Peaks | None) -> dict[str, JSON | CountedFigure]:
    """Return a problem's row in the overview table: its fastest variant, or its predicted time."""
    winner, best_own = section.winner, section.best_own
    sectors, conflicts = _worst_accesses(section)
    group = section.groups[0].rows if section.groups else []
    predicted = next((row for row in section.rows if row.predicted), None)
    memory_s, arithmetic_s = times_at_peak(predicted, predicting)
    return {
        "anchor": anchor,
        "operator": section.operator,
        "problem": section.problem,
        "winner": winner.variant if winner else "",
        "config": winner.config if winner else "",
        "tie": any(rank == "1=" and winner and row.variant != winner.variant for row, rank in group),
        "time": units.time(winner.time_s if winner else None),
        "rate": rate_text(winner) if winner else "–",
        "share": units.percent(winner.peak_share if winner else None),
        "bar": bar_width(winner),
        "above": (winner.above_peak or "") if winner else "",
        "first": _over_first(section, best_own),
        "library": units.ratio(best_own.speedups.over_library if best_own else None),
        "from_library": bool(winner and winner.library),
        "right": section.count("right"),
        "total": len(section.rows) - section.count("unsupported"),
        "devices": ", ".join(section.devices),
        "elsewhere": section.count("unsupported"),
        "sectors": sectors,
        "conflicts": conflicts,
        "moving": units.time(memory_s),
        "computing": units.time(arithmetic_s),
        "limit": predicted.predicted.limit if predicted and predicted.predicted else "",
        "sort": {
            "time": sort_number(winner.time_s if winner else None),
            "share": sort_number(winner.peak_share if winner else None),
            "library": sort_number(best_own.speedups.over_library if best_own else None),
            "moving": sort_number(memory_s),
            "computing": sort_number(arithmetic_s),
        },
    }


def access_cost(section: Section) -> tuple[float, float]:
    """Return a sort key for problems without times: the worst ratio of sectors and of bank conflicts."""
    sectors, conflicts = _worst_accesses(section)
    return sectors.value or 0.0, conflicts.value or 0.0


def _worst_accesses(section: Section) -> tuple[CountedFigure, CountedFigure]:
    """Return the worst uncoalesced access and the worst bank conflicts of the user's variants, or of all variants."""
    rows_with_counts = [row for row in section.unmeasured if row.traffic]
    rows = [row for row in rows_with_counts if row.own] or rows_with_counts
    return (worst_sectors(rows), worst_conflicts(rows)) if rows else (CountedFigure(), CountedFigure())


def times_at_peak(row: Row | None, ceilings: Peaks | None) -> tuple[float | None, float | None]:
    """Return the times in seconds that compulsory bytes alone and FLOPs alone need at peak, without the launch.

    A time is None if unknown.
    """
    if row is None or ceilings is None:
        return None, None
    bandwidth, rate = ceilings.at_level(row.memory_level).dram_bytes_per_s, ceilings.flops_per_s(row.unit)
    memory_s = row.compulsory_bytes / bandwidth if row.compulsory_bytes and bandwidth else None
    return memory_s, row.flops / rate if row.flops and rate else None


def sort_number(value: float | None) -> str:
    """Format a number to sort by; "" for None."""
    return "" if value is None else f"{value:.6g}"


def _over_first(section: Section, best_own: Row | None) -> str:
    """Return the speedup of the best own variant over the first of its ladder; "–" if it is the first."""
    if best_own is None or best_own.builds_on not in {row.variant for row in section.rows}:
        return "–"
    return units.ratio(best_own.speedups.over_first)


def bar_width(row: Row | None) -> str:
    """Return the width in percent of a bar that shows a percentage of peak."""
    return f"{min(100.0, 100 * row.peak_share):.0f}" if row and row.peak_share is not None else ""


def intensity(row: Row) -> str:
    """Format the FLOPs per compulsory byte; "–" without FLOPs or bytes."""
    return units.per_byte(row.flops / row.compulsory_bytes) if row.flops and row.compulsory_bytes else "–"


def problem_facts(section: Section) -> list[str]:
    """Return a problem's work, arithmetic intensity and devices."""
    row = section.rows[0]
    phrases = [
        units.si(row.flops, "FLOP") if row.flops else "no FLOPs",
        f"{units.si(row.compulsory_bytes, 'B')} compulsory",
        intensity(row) if row.flops else "",
    ]
    phrases += [f"on {' and '.join(section.devices)}"] if section.devices else []
    return [phrase for phrase in phrases if phrase]
