"""The rows of a page's tables as text, with the numbers to sort them by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from opbench import units
from opbench.gpu.limits.floor import Above
from opbench.records import JSON
from opbench.report.charts.histogram import beyond, histogram
from opbench.report.run import sentences
from opbench.report.run.overview import bar_width
from opbench.report.run.sections import Group
from opbench.report.terminal import error, rate, time_heading
from opbench.results.result import Result
from opbench.results.rows import Row


def group_cells(group: Group, results: Mapping[str, Result]) -> dict[str, JSON]:
    """Return one precision class: its ranking, and every config of each variant with several configs."""
    rows = [row for row, _ in group.rows]
    several = len({_roof(row) for row in rows if row.roof_share is not None}) > 1
    return {
        "precision": group.precision,
        "rows": [cells(row, results[row.case], rank) | {"roof": _roof(row) * several} for row, rank in group.rows],
        "configs": len(group.rest),
        "sweeps": _sweeps(group.rest, results),
        "rate_unit": rate_unit(rows),
        "time_heading": time_heading(rows),
    }


def _sweeps(rest: Sequence[tuple[Row, str]], results: Mapping[str, Result]) -> list[dict[str, JSON]]:
    """Return each variant with several configs: its tunables as columns, the fastest config first."""
    found = []
    order = list(dict.fromkeys(row.variant for row, _ in rest))
    for variant, ranked in groupby(sorted(rest, key=lambda pair: order.index(pair[0].variant)), lambda p: p[0].variant):
        lines = list(ranked)
        if len(lines) < 2:
            continue
        configs = [results[row.case].config for row, _ in lines]
        names = list(dict.fromkeys(name for config in configs for name in config))
        best = lines[0][0].time_s or math.nan
        found.append(
            {
                "variant": variant,
                "title": lines[0][0].title,
                "names": names,
                "rows": [
                    {
                        **cells(row, results[row.case], rank),
                        "values": [str(config.get(name, "–")) for name in names],
                        "over_best": units.ratio((row.time_s or math.nan) / best),
                    }
                    for (row, rank), config in zip(lines, configs, strict=True)
                ],
            }
        )
    return found


def rate_unit(rows: Iterable[Row]) -> str:
    """Return the title of the rate column."""
    kinds = {"FLOP/s" if rate(row).endswith("FLOP/s") else "B/s" for row in rows}
    return " or ".join(sorted(kinds)) or "rate"


def cells(row: Row, result: Result, rank: str) -> dict[str, JSON]:
    """Return a table row as text, with the numbers to sort by."""
    samples = result.samples_s
    return {
        "rank": rank,
        "variant": row.variant,
        "config": row.config,
        "title": row.title,
        "case": row.case,
        "library": row.library,
        "median": units.time(row.time_s),
        "interval": units.interval(row.time_low_s, row.time_high_s),
        "kernel": units.time(row.kernel_s) if row.kernel_s is not None else "",
        "histogram": Markup(histogram(samples)),
        "samples": _samples(row, result),
        "device": row.device,
        "count": f"n = {row.samples}" if row.samples else "",
        "range": _range(samples, row),
        "rate": rate(row),
        "share": units.percent(row.roof_share),
        "bar": bar_width(row),
        "roof": "",
        "above": row.above_roof or "",
        "impossible": row.above_roof == Above.IMPOSSIBLE,
        "previous": units.ratio(row.speedup_over_rung),
        "over_library": units.ratio(row.speedup_over_library),
        "registers": "–" if row.registers is None else str(row.registers),
        "spills": row.local_bytes or "",
        "occupancy": units.percent(row.occupancy),
        "limiter": (row.limiter or "").replace(" and ", ", "),
        "error": error(row.worst_error),
        "allowed": error(row.allowed_error),
        "builds_on": row.builds_on,
        "warned": bool(row.warnings),
        "warnings": "\n".join(map(sentences.advised, row.warnings)),
        **_counts(result),
        "sort": {
            k: "" if v is None or not math.isfinite(v) else f"{v:.6g}"
            for k, v in {
                "median": row.time_s,
                "spread": row.spread,
                "rate": row.flops_per_s if rate(row).endswith("FLOP/s") else row.bytes_per_s,
                "share": row.roof_share,
                "previous": row.speedup_over_rung,
                "library": row.speedup_over_library,
                "registers": row.registers,
                "occupancy": row.occupancy,
                "error": row.worst_error,
            }.items()
        },
    }


def _roof(row: Row) -> str:
    """Return which peak a percentage refers to, such as "of 3×tf32" or "of DRAM"; "" without a percentage.

    Percentages of different peaks are not comparable.
    """
    if row.roof_share is None:
        return ""
    return f"of {row.memory_level.upper() if row.bound == 'memory' else units.unit(row.unit)}"


def _samples(row: Row, result: Result) -> str:
    """Describe the number of samples, the reason for stopping, and how many were discarded at a throttled clock."""
    measurement = result.measurement
    if not row.samples or not measurement:
        return ""
    reason = measurement.stop_reason.replace("_", " ")
    aside = f"; {row.throttled} more at a throttled clock set aside" if row.throttled else ""
    count = len(set(measurement.processes))
    processes = f" in {count} processes" if count else ""
    return f"{row.samples} samples{processes}" + (f", until {reason}" if reason else "") + aside


def _range(samples: Sequence[float], row: Row) -> str:
    """Return the range from fastest to slowest sample relative to the median, such as "range 12 %, 2 beyond".

    "2 beyond" means that 2 samples lie outside the histogram's axis.
    """
    if len(samples) < 2 or not row.time_s:
        return ""
    share = (max(samples) - min(samples)) / row.time_s
    said = f"range {100 * share:.2g} %" if share < 0.1 else f"range {100 * share:.0f} %"
    outside = beyond(samples)
    return f"{said}, {outside} beyond" if outside else said


def _counts(result: Result) -> dict[str, str]:
    """Return the launches, blocks and threads that the verdict recorded."""
    verdict = result.verdict
    launches = [step for step in verdict.launches if not step.zero] if verdict else []
    blocks = sum(math.prod(step.grid or (0,)) for step in launches)
    threads = sum(math.prod(step.grid or (0,)) * math.prod(step.block or (0,)) for step in launches)
    known = bool(launches)
    return {
        "launches": f"{len(launches)}" if known else "–",
        "blocks": f"{blocks:,}" if known else "–",
        "threads": f"{threads:,}" if known else "–",
        "findings": str(len(verdict.findings)) if verdict else "–",
        "integers": verdict.integers if verdict and verdict.integers else "–",
    }
