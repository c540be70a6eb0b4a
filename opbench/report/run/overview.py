"""The page's first table: every operator and problem with its winner, or with what is predicted for it."""

from __future__ import annotations

from typing import Any

from opbench import units
from opbench.gpus.ceilings import Ceilings, best_time
from opbench.report.charts.chart import per_byte
from opbench.report.run.sections import Section
from opbench.report.terminal import rate
from opbench.results.rows import Row

LIMITS = {"memory": "bytes", "compute": "arithmetic", "launch": "launch"}


def overview(part: Section, anchor: str, predicting: Ceilings | None) -> dict[str, Any]:
    """One line of the table."""
    winner, own, first = part.winner, part.best_own, part.rows[0]
    group = part.groups[0].rows if part.groups else []
    predicted = next((row for row in part.rows if row.predicted_best_s is not None), None)
    return {
        "anchor": anchor,
        "operator": part.operator,
        "problem": part.problem,
        "winner": winner.variant if winner else "",
        "config": winner.config if winner else "",
        "tie": any(rank == "1=" and winner and row.variant != winner.variant for row, rank in group),
        "time": units.time(winner.time_s if winner else None),
        "rate": rate(winner) if winner else "–",
        "share": units.percent(winner.roof_share if winner else None),
        "bar": bar_width(winner),
        "above": (winner.above_roof or "") if winner else "",
        "first": _over_first(part, own),
        "library": units.ratio(own.speedup_over_library if own else None),
        "from_library": bool(winner and winner.library),
        "right": part.count("right"),
        "total": len(part.rows) - part.count("unsupported"),
        "elsewhere": part.count("unsupported"),
        "flops": work(first.flops, "FLOP"),
        "bytes": units.si(first.compulsory_bytes, "B"),
        "intensity": intensity(first).removesuffix(" FLOP/B"),
        "best": units.time(predicted.predicted_best_s) if predicted else "–",
        "limit": LIMITS.get(predicted.bound or "", "–") if predicted else "–",
        "roof": _under_the_launch(predicted, predicting),
        "sort": {
            "time": number(winner.time_s if winner else None),
            "share": number(winner.roof_share if winner else None),
            "flops": number(first.flops),
            "bytes": number(first.compulsory_bytes),
            "best": number(predicted.predicted_best_s if predicted else None),
        },
    }


def _under_the_launch(row: Row | None, ceilings: Ceilings | None) -> str:
    """What the roofs alone would allow a problem that an empty kernel's launch outlasts."""
    if row is None or ceilings is None or row.bound != "launch" or not row.compulsory_bytes:
        return ""
    best = best_time(ceilings.at_level(row.memory_level), row.flops or 0, row.compulsory_bytes, row.unit)
    return f"{LIMITS[best[1]]} {units.time(best[0])}" if best else ""


def number(value: float | None) -> str:
    """A number to sort by; empty when missing."""
    return "" if value is None else f"{value:.6g}"


def _over_first(part: Section, own: Row | None) -> str:
    """The best own variant over its first rung; a dash when it is that rung."""
    if own is None or own.builds_on not in {row.variant for row in part.rows}:
        return "–"
    return units.ratio(own.speedup_over_first)


def bar_width(row: Row | None) -> str:
    """Width of the little bar beside a share, in per cent."""
    return f"{min(100.0, 100 * row.roof_share):.0f}" if row and row.roof_share is not None else ""


def work(value: int | None, unit: str) -> str:
    """Counted work; an operator that only moves data has none, which is no zero of a measurement."""
    return units.si(value, unit) if value else "none"


def intensity(row: Row) -> str:
    """FLOPs per compulsory byte."""
    return per_byte(row.flops / row.compulsory_bytes) if row.flops and row.compulsory_bytes else "–"


def problem_facts(part: Section, predicting: Ceilings | None) -> list[str]:
    """A problem's work, its arithmetic intensity and, without a GPU, the least time that is predicted for it."""
    row = part.rows[0]
    facts = [
        units.si(row.flops, "FLOP") if row.flops else "no FLOPs",
        f"{units.si(row.compulsory_bytes, 'B')} compulsory",
        intensity(row) if row.flops else "",
    ]
    predicted = next((r for r in part.rows if r.predicted_best_s is not None), None)
    if predicting is not None and predicted is not None:
        name = predicting.gpu.removeprefix("NVIDIA ")
        facts.append(f"predicted on {name}: {units.time(predicted.predicted_best_s)} at best")
    return [fact for fact in facts if fact]
