"""The rows of the page's tables: each cell as text, with the number to sort the column by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from opbench import units
from opbench.gpu.limits.lower_bound import AbovePeak
from opbench.records import JSON
from opbench.report.charts.histogram import histogram, samples_beyond_axis
from opbench.report.run import sentences
from opbench.report.run.overview import bar_width
from opbench.report.run.sections import Group
from opbench.report.terminal import error_texts, is_limited_by_arithmetic, rate_text, time_heading
from opbench.results.result import Result
from opbench.results.rows import Row


def group_cells(group: Group, results: Mapping[str, Result]) -> dict[str, JSON]:
    """Return the tables of one precision class: its ranking, and all configs of variants with several configs."""
    rows = [row for row, _ in group.rows]
    has_several_peaks = len({_peak_name(row) for row in rows if row.peak_share is not None}) > 1
    return {
        "precision": group.precision,
        "rows": [
            cells(row, results[row.case], rank) | {"peak": _peak_name(row) * has_several_peaks}
            for row, rank in group.rows
        ],
        "configs": len(group.rest),
        "sweeps": _sweeps(group.rest, results),
        "rate_unit": rate_unit(rows),
        "time_heading": time_heading(rows),
    }


def _sweeps(rest: Sequence[tuple[Row, str]], results: Mapping[str, Result]) -> list[dict[str, JSON]]:
    """Return a table of the configs of each variant with several: tunables as columns, fastest config first."""
    sweeps = []
    order = list(dict.fromkeys(row.variant for row, _ in rest))
    for variant, ranked in groupby(sorted(rest, key=lambda pair: order.index(pair[0].variant)), lambda p: p[0].variant):
        ranked_rows = list(ranked)
        if len(ranked_rows) < 2:
            continue
        configs = [results[row.case].config for row, _ in ranked_rows]
        names = list(dict.fromkeys(name for config in configs for name in config))
        best = ranked_rows[0][0].time_s or math.nan
        sweeps.append(
            {
                "variant": variant,
                "title": ranked_rows[0][0].title,
                "names": names,
                "rows": [
                    {
                        **cells(row, results[row.case], rank),
                        "values": [str(config.get(name, "–")) for name in names],
                        "over_best": units.ratio((row.time_s or math.nan) / best),
                    }
                    for (row, rank), config in zip(ranked_rows, configs, strict=True)
                ],
            }
        )
    return sweeps


def rate_unit(rows: Iterable[Row]) -> str:
    """Return the title of the rate column."""
    rate_units = {"FLOP/s" if is_limited_by_arithmetic(row) else "B/s" for row in rows if row.times}
    return " or ".join(sorted(rate_units)) or "rate"


def cells(row: Row, result: Result, rank: str) -> dict[str, JSON]:
    """Return one table row as text, with the numbers to sort by."""
    samples, times, resources = result.samples_s, row.times, row.resources
    worst_error, allowed_error = error_texts(row.verdict)
    return {
        "rank": rank,
        "variant": row.variant,
        "config": row.config,
        "title": row.title,
        "case": row.case,
        "library": row.library,
        "median": units.time(row.time_s),
        "interval": units.interval(*(times and times.interval_s) or (None, None)),
        "kernel": units.time(times.kernel_s) if times and times.kernel_s is not None else "",
        "histogram": Markup(histogram(samples)),
        "samples": _samples(row, result),
        "device": row.device,
        "count": f"n = {times.samples}" if times and times.samples else "",
        "range": _range(samples, row),
        "rate": rate_text(row),
        "share": units.percent(row.peak_share),
        "bar": bar_width(row),
        "peak": "",
        "above": row.above_peak or "",
        "impossible": row.above_peak == AbovePeak.IMPOSSIBLE,
        "previous": units.ratio(row.speedups.over_previous),
        "over_library": units.ratio(row.speedups.over_library),
        "registers": str(resources.registers) if resources else "–",
        "spills": (resources.local_bytes if resources else 0) or "",
        "occupancy": units.percent(resources.occupancy if resources else None),
        "limiter": ((resources and resources.limiter) or "").replace(" and ", ", "),
        "error": worst_error,
        "allowed": allowed_error,
        "builds_on": row.builds_on,
        "warned": bool(row.warnings),
        "warnings": "\n".join(map(sentences.warning_advice, row.warnings)),
        "sort": {
            k: "" if v is None or not math.isfinite(v) else f"{v:.6g}"
            for k, v in {
                "median": row.time_s,
                "spread": times.spread if times else None,
                "rate": _rate(row),
                "share": row.peak_share,
                "previous": row.speedups.over_previous,
                "library": row.speedups.over_library,
                "registers": resources.registers if resources else None,
                "occupancy": resources.occupancy if resources else None,
                "error": row.verdict.worst_error if row.verdict else None,
            }.items()
        },
    }


def _rate(row: Row) -> float | None:
    """Return the rate of a row in FLOP/s or bytes/s."""
    if row.times is None:
        return None
    return row.times.flops_per_s if is_limited_by_arithmetic(row) else row.times.bytes_per_s


def _peak_name(row: Row) -> str:
    """Return the peak that a percentage refers to, such as "of 3×tf32" or "of DRAM"; "" without a percentage.

    Percentages of different peaks are not comparable.
    """
    if row.peak_share is None:
        return ""
    return f"of {row.memory_level.upper() if row.bound == 'memory' else units.unit(row.unit)}"


def _samples(row: Row, result: Result) -> str:
    """Return the number of samples, why sampling stopped, and how many were discarded at a throttled clock."""
    measurement = result.measurement
    if not row.times or not row.times.samples or not measurement:
        return ""
    reason = measurement.stop_reason.replace("_", " ")
    throttled_text = f"; {row.times.throttled} more at a throttled clock set aside" if row.times.throttled else ""
    count = len(set(measurement.processes))
    processes = f" in {count} processes" if count else ""
    return f"{row.times.samples} samples{processes}" + (f", until {reason}" if reason else "") + throttled_text


def _range(samples: Sequence[float], row: Row) -> str:
    """Return the range of all samples relative to the median, such as "range 12 %, 2 beyond".

    "2 beyond" means that 2 samples lie outside the histogram's axis.
    """
    if len(samples) < 2 or not row.time_s:
        return ""
    share = (max(samples) - min(samples)) / row.time_s
    text = f"range {100 * share:.2g} %" if share < 0.1 else f"range {100 * share:.0f} %"
    outside = samples_beyond_axis(samples)
    return f"{text}, {outside} beyond" if outside else text
