"""Choose the chart of a problem: a roofline if counters give variants different intensities, else bars."""

from __future__ import annotations

import math

from opbench.report.charts.bars import bars_chart
from opbench.report.charts.chart import Chart, ChartFrame
from opbench.report.charts.roofline import counted_intensity, roofline_chart
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row


def rate_chart(section: Section, name: str, chart_frame: ChartFrame) -> Chart | None:
    """Return the chart of a problem's rates; None without times.

    Computed from compulsory bytes, all variants of a problem have the same intensity: a roofline would stack
    them in one column, so bars are drawn instead.
    """
    rows = sorted((row for group in section.groups for row, _ in (group.rest or group.rows)), key=_time_or_infinity)
    if not rows:
        return None
    best = best_configs(rows)
    if any(counted_intensity(row, chart_frame.counters.get(row.case)) is not None for row in best):
        return roofline_chart(section, name, rows, chart_frame)
    return bars_chart(section, name, best, chart_frame)


def _time_or_infinity(row: Row) -> float:
    return row.time_s or math.inf
