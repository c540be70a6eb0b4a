"""The roofline of one operator and problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.report.charts.bars import rate_bars
from opbench.report.charts.chart import Chart, ChartFrame, distance_to_peak, row_sentence, shorten
from opbench.report.charts.roofline_axes import (
    OFFSET,
    Label,
    draw_labels,
    draw_matrix_peaks,
    draw_rooflines,
    new_axes,
    on_paper,
    peak_rate,
    ridge_point,
)
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row

MAX_LABELS = 24


def roofline_chart(section: Section, name: str, rows: list[Row], chart_frame: ChartFrame) -> Chart:
    """Draw the rows of a problem under the measured and the datasheet's roofline; label each variant's best config."""
    best = best_configs(rows)
    counted = {
        row.case: x for row in best if (x := counted_intensity(row, chart_frame.counters.get(row.case))) is not None
    }
    peaks = [c for c in (chart_frame.measured, chart_frame.sheet) if c and c.dram_bytes_per_s and c.fp32_flops_per_s]
    furthest = max(counted.values(), default=0.0)
    labels = [_label(row, row is section.winner, furthest) for row in best[:MAX_LABELS]]
    rates = [row.times.flops_per_s for row in rows if row.times and row.times.flops_per_s]
    figure, axes = new_axes(labels, [_intensity(rows[0]), *counted.values()], rates, peaks)
    draw_matrix_peaks(axes, peaks, {row.unit for row in best}, max(map(_intensity, best)))
    intensity = _intensity(best[0])
    is_occupied = any(_rate(row) > peak_rate(c, intensity) for c in peaks for row in best) and intensity > ridge_point(
        peaks[0]
    )
    draw_rooflines(axes, peaks, best[0].memory_level, slope_from=intensity, busy_above=bool(is_occupied))
    best_cases = {row.case for row in best}
    other_rows = [row for row in rows if row.case not in best_cases]
    for row in other_rows:
        axes.plot(
            _intensity(row), _rate(row), ".", color=chart_frame.styles[row.variant][0], markersize=3.5, alpha=0.55
        )
    points = _draw_points(axes, best, counted, chart_frame)
    if section.best_own is not None and peaks:
        _draw_arrow(figure, axes, section.best_own, peaks, chart_frame)
    draw_labels(figure, axes, labels, peaks)
    return Chart(
        name,
        figure,
        f"Roofline of {section.operator}{section.problem}",
        f"FLOP/s over FLOP per byte, both logarithmic; {len(best)} variants, fastest {row_sentence(best[0])}. "
        "The table below holds the same numbers.",
        points,
        _note_text(len(best), bool(counted), bool(other_rows)),
        rate_bars(best[:MAX_LABELS], by_bytes=False),
    )


def _note_text(variants: int, counted: bool, has_other_rows: bool) -> str:
    """Return the note below the chart: the meaning of the marks."""
    sentences = [
        "Filled: arithmetic intensity from compulsory bytes.",
        "Open: from the DRAM traffic that the counters saw." if counted else "",
        "Small dots: other configs." if has_other_rows else "",
        f"Only the fastest {MAX_LABELS} of {variants} variants are labelled." if variants > MAX_LABELS else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _label(row: Row, bold: bool, furthest: float) -> Label:
    share = f"  {units.percent(row.peak_share)}" if row.peak_share is not None else ""
    return Label(_intensity(row), _rate(row), shorten(row.variant, 34) + share, bold, furthest)


def _intensity(row: Row) -> float:
    return (row.flops or 1) / (row.compulsory_bytes or 1)


def _rate(row: Row) -> float:
    return (row.times.flops_per_s if row.times else None) or 1.0


def counted_intensity(row: Row, counters: Mapping[str, Any] | None) -> float | None:
    """Return the FLOPs per byte of DRAM traffic from hardware counters; None without counters or FLOPs."""
    dram = (counters or {}).get("dram_bytes")
    return row.flops / float(dram) if dram and row.flops else None


def _draw_points(
    axes: Axes, best: Sequence[Row], counted: Mapping[str, float], chart_frame: ChartFrame
) -> dict[str, str]:
    """Draw each variant's best config with its interval; return the tooltips by the id of the point."""
    points = {}
    for i, row in enumerate(best):
        colour, shape = chart_frame.styles[row.variant]
        x, rate = _intensity(row), _rate(row)
        if row.times and row.times.interval_s and row.flops:
            axes.plot(
                [x, x], [row.flops / end_s for end_s in reversed(row.times.interval_s)], "-", color=colour, lw=1.4
            )
        axes.plot(x, rate, shape, color=colour, markersize=7.5, gid=f"p{i}", zorder=3)
        points[f"p{i}"] = row_sentence(row)
        if row.case in counted:
            # The open point uses the intensity from counted traffic; a line joins it to the filled point.
            counted_x = counted[row.case]
            axes.plot([x, counted_x], [rate, rate], "-", color=colour, linewidth=1.0, alpha=0.7)
            axes.plot(counted_x, rate, shape, color=colour, fillstyle="none", markersize=7, gid=f"q{i}")
            points[f"q{i}"] = f"{row.name} by DRAM traffic that the hardware counted: {units.per_byte(counted_x)}"
    return points


def _draw_arrow(figure: Figure, axes: Axes, row: Row, peaks: Sequence[Peaks], chart_frame: ChartFrame) -> None:
    """Draw an arrow from the best variant that is not a library to its peak, labelled with the ratio."""
    distance = distance_to_peak(row)
    if not distance or row.peak_share is None:
        return
    x_pixels, y_pixels = axes.transData.transform((_intensity(row), _rate(row)))
    x, y = axes.transData.inverted().transform((x_pixels - 9 / 72 * figure.dpi, y_pixels))
    top = _rate(row) / row.peak_share * (x / _intensity(row) if row.bound == "memory" else 1.0)
    arrow = {
        "arrowstyle": "-|>", "color": chart_frame.styles[row.variant][0], "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0,
    }  # fmt: skip
    axes.annotate("", (x, top), xytext=(x, y), arrowprops=arrow)
    # The space above all peaks is free except for the names of the matrix units' peaks.
    if row.bound == "memory" or row.unit == "f32":
        highest = max([top, *(peak_rate(c, x) for c in peaks)])
        axes.annotate(distance, (x, highest), xytext=(-2, 4), ha="right", va="bottom", **OFFSET)
    else:
        axes.annotate(distance, (x, top), xytext=(-5, -5), ha="right", va="top", bbox=on_paper(axes), **OFFSET)
