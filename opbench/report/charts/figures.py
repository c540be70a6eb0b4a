"""Which chart a problem gets: ranked bars, or a roofline where counters tell its variants' intensities apart."""

from __future__ import annotations

import math

from opbench.report.charts.bars import bars
from opbench.report.charts.chart import Chart, ChartFrame
from opbench.report.charts.roofline import counted_intensity, roofline
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row


def performance(section: Section, name: str, scene: ChartFrame) -> Chart | None:
    """A section's chart; None without times.

    By compulsory bytes all variants of a problem share one intensity: a roofline would stack them in a column.
    """
    rows = sorted((row for group in section.groups for row, _ in (group.rest or group.rows)), key=_time)
    if not rows:
        return None
    best = best_configs(rows)
    if any(counted_intensity(row, scene.counters.get(row.case)) is not None for row in best):
        return roofline(section, name, rows, scene)
    return bars(section, name, best, scene)


def _time(row: Row) -> float:
    return row.time_s or math.inf
