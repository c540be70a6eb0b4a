"""A problem's variants as bars ranked by rate, each with the peak that applies to that variant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from opbench import units
from opbench.gpu.limits.ceilings import LEVELS, Peaks
from opbench.report.bars import Bar, scaled
from opbench.report.charts.chart import COLOURS, Chart, ChartFrame, distance_to_peak, row_sentence, shorten
from opbench.report.charts.roofline_axes import OFFSET, line_style, text_width_points
from opbench.report.charts.svg import INK, MUTED
from opbench.report.run.sections import Section
from opbench.results.rows import Row
from opbench.source.precision import UNIT_ROUNDOFF

MAX_BARS = 24
MAX_AXIS_FACTOR = 2.5
"""The axis ends at most at this multiple of the fastest bar; the note mentions a peak beyond the axis."""
WIDTH = 8.0
"""Width of the figure in inches."""
GAP_MARGIN_POINTS = 6
"""Least space in addition to the label of the distance to the peak, which otherwise has none."""
MAX_NAME_LENGTH = 32
"""Most characters of a variant's name."""
YOURS_ROLE = "your variants"
OWN_ROLE, LESS_PRECISE_ROLE, LIBRARY_ROLE = "opbench's variants", "opbench's variants of lower precision", "library"
ROLES = {YOURS_ROLE: COLOURS[2], OWN_ROLE: COLOURS[0], LESS_PRECISE_ROLE: COLOURS[5], LIBRARY_ROLE: MUTED}
"""What the colours of the bars mean."""


def bars_chart(section: Section, name: str, rows: list[Row], chart_frame: ChartFrame) -> Chart:
    """Draw a problem's variants as bars, fastest first, at most `MAX_BARS`.

    Bars show bandwidth if bytes limit the fastest row, else FLOP/s.
    """
    shown_rows = rows[:MAX_BARS]
    roundoff = min(UNIT_ROUNDOFF.get(row.precision, 0.0) for row in shown_rows)
    roles = [_role(row, roundoff) for row in shown_rows]
    legend = [Patch(color=colour, label=role) for role, colour in ROLES.items() if role in roles]
    bottom_margin = 0.55 + (0.3 if legend[1:] else 0)
    height = 0.55 + bottom_margin + 0.3 * len(shown_rows)
    figure = Figure(figsize=(WIDTH, height))
    names = [_name(row) for row in shown_rows]
    left = 0.03 + 0.0112 * max(map(len, names))
    axes = figure.add_axes((left, bottom_margin / height, 0.775 - left, 1 - (bottom_margin + 0.45) / height))
    if legend[1:]:
        figure.legend(handles=legend, loc="lower left", bbox_to_anchor=(0.02, 0), ncols=4, frameon=False, fontsize=9)
    by_bytes = section.moves_data_only or rows[0].bound == "memory"
    peaks = [peak for row in shown_rows if (peak := _peak_in_units(row, by_bytes)) is not None]
    fastest = max(_rate_in_units(row, by_bytes) for row in shown_rows)
    limits = [*peaks, (_rate_of(chart_frame.sheet, shown_rows[0], by_bytes) or 0.0) if chart_frame.sheet else 0.0]
    right_edge = 1.03 * max([fastest, *(limit for limit in limits if limit <= MAX_AXIS_FACTOR * fastest)]) or 1.0
    points = {}
    for i, row in enumerate(shown_rows):
        _draw_bar(axes, i, row, by_bytes, ROLES[roles[i]], f"p{i}", bold=row is section.winner)
        points[f"p{i}"] = row_sentence(row)
    axes.set_xlim(0, right_edge)
    axes.set_ylim(len(shown_rows) - 0.4, -0.6)
    axes.set_yticks(range(len(shown_rows)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    _label_rates(axes, fastest, by_bytes)
    axes.grid(True, axis="x")
    if peaks:
        axes.annotate(
            "rate, % of peak", (1.0, 1.0), xycoords="axes fraction", xytext=(8, 2), textcoords="offset points",
            ha="left", va="bottom", fontsize=9, color=MUTED, annotation_clip=False, parse_math=False,
        )  # fmt: skip
    is_shared_peak = bool(peaks) and len(peaks) == len(shown_rows) and max(peaks) < 1.001 * min(peaks)
    if is_shared_peak:
        _draw_shared_peak(axes, section, shown_rows, by_bytes, chart_frame, right_edge)
    else:
        _draw_own_peaks(axes, shown_rows, by_bytes, right_edge)
    rate_name = "Bandwidth" if by_bytes else "Rate"
    return Chart(
        name,
        figure,
        f"{rate_name} of {section.operator}{section.problem}",
        f"Bars of {'GB/s' if by_bytes else 'TFLOP/s'} for {len(shown_rows)} variants; "
        f"fastest {row_sentence(shown_rows[0])}. The table below holds the same numbers.",
        points,
        _note_text(rows, peaks, is_shared_peak, right_edge),
        rate_bars(shown_rows, by_bytes),
    )


def rate_bars(rows: Sequence[Row], by_bytes: bool) -> list[Bar]:
    """Return the rates of rows as bars, of which the peak or the fastest rate is the full length."""
    bars = []
    for row in rows:
        rate = _rate_in_units(row, by_bytes)
        share = f"{units.percent(row.peak_share)} of peak" if row.peak_share is not None else ""
        bars.append(Bar(_name(row), _rate_text(rate, by_bytes), rate, share, "" if row.library else "fast"))
    longest = max(max(bar.length, _peak_in_units(row, by_bytes) or 0.0) for bar, row in zip(bars, rows, strict=True))
    return scaled(bars, longest)


def _rate_text(rate: float, by_bytes: bool) -> str:
    """Format a rate in GB/s or TFLOP/s."""
    return units.byte_rate(rate * 1e9) if by_bytes else units.flop_rate(rate * 1e12)


def _label_rates(axes: Axes, fastest: float, by_bytes: bool) -> None:
    """Label the axis in the unit in which the fastest bar's number is printed."""
    axis_exponent, quantity, unit = (9, "compulsory bytes", "B/s") if by_bytes else (12, "FLOPs", "FLOP/s")
    exponent = units.prefix_exponent(fastest * 10.0**axis_exponent) if fastest else axis_exponent
    prefix, shown_exponent = ("T", 12) if exponent >= 12 else ("G", 9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 10.0 ** (axis_exponent - shown_exponent):g}")
    axes.set_xlabel(f"{quantity} / time ({prefix}{unit})")


def _note_text(rows: Sequence[Row], peaks: Sequence[float], is_shared_peak: bool, right_edge: float) -> str:
    """Return the note below the chart: the meaning of the marks, and why a bar exceeds its peak."""
    reasons_above_peak = dict.fromkeys(row.above_peak for row in rows[:MAX_BARS] if row.above_peak)
    sentences = [
        f"The fastest {MAX_BARS} of {len(rows)} variants." if len(rows) > MAX_BARS else "",
        ""
        if is_shared_peak or not peaks
        else "A black mark is the peak of the unit that the variant uses; the percentage refers to it.",
        "Peaks beyond the axis have no mark." if any(peak > right_edge for peak in peaks) else "",
        f"^ above peak: {'; '.join(map(str, reasons_above_peak))}." if reasons_above_peak else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _name(row: Row) -> str:
    return shorten(row.variant, MAX_NAME_LENGTH) + ("" if row.precision == "f32" else f" ({row.precision})")


def _role(row: Row, least_roundoff: float) -> str:
    """Return the role that selects a bar's colour, such as library;

    `least_roundoff` is that of the most precise row.
    """
    if row.library:
        return LIBRARY_ROLE
    if row.own:
        return YOURS_ROLE
    return LESS_PRECISE_ROLE if UNIT_ROUNDOFF.get(row.precision, 0.0) > least_roundoff else OWN_ROLE


def _rate_in_units(row: Row, by_bytes: bool) -> float:
    """Return a row's rate in GB/s or TFLOP/s."""
    if row.times is None:
        return 0.0
    return (row.times.bytes_per_s or 0) / 1e9 if by_bytes else (row.times.flops_per_s or 0) / 1e12


def _peak_in_units(row: Row, by_bytes: bool) -> float | None:
    """Return the rate at a row's peak for this problem, in GB/s or TFLOP/s; None if the peak is unknown."""
    return _rate_in_units(row, by_bytes) / row.peak_share if row.peak_share else None


def _draw_bar(axes: Axes, position: int, row: Row, by_bytes: bool, colour: str, gid: str, *, bold: bool) -> None:
    """Draw one bar with its 95 % interval, and its numbers in the right column."""
    rate = _rate_in_units(row, by_bytes)
    axes.barh(position, rate, height=0.62, color=colour)
    axes.patches[-1].set_gid(gid)
    if row.times and row.times.interval_s:
        rate_ends = [rate * row.times.time_s / end for end in reversed(row.times.interval_s)]
        axes.plot(rate_ends, [position, position], "-", color=INK, linewidth=1.4)
    share = f"  {units.percent(row.peak_share)}" if row.peak_share is not None else ""
    axes.annotate(
        _rate_text(rate, by_bytes) + share + (" ^" if row.above_peak else ""),
        (1.0, position),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        ha="left",
        fontsize=9,
        annotation_clip=False,
        parse_math=False,
        fontweight="bold" if bold else "normal",
    )


def _draw_own_peaks(axes: Axes, shown_rows: Sequence[Row], by_bytes: bool, right_edge: float) -> None:
    """Draw a mark at each bar's own peak if the axis is long enough, and name the peaks above the axes."""
    for index, row in enumerate(shown_rows):
        if (peak := _peak_in_units(row, by_bytes)) is not None and peak <= right_edge:
            axes.plot([peak, peak], [index - 0.36, index + 0.36], "-", color=INK, linewidth=2.2, solid_capstyle="butt")
    per_point = right_edge / (WIDTH * 72 * axes.get_position().width)
    line_ends = [-math.inf, -math.inf]  # right ends of the names in the two lines above the axes
    named_until = -math.inf
    for peak, row in sorted(
        ((_peak_in_units(r, by_bytes) or math.inf, r) for r in shown_rows), key=lambda pair: pair[0]
    ):
        if peak > right_edge or peak < 1.001 * named_until:
            continue
        level = _peak_name(row)
        half_width = 0.5 * text_width_points(level) * per_point
        free_lines = [line for line, end in enumerate(line_ends) if peak - half_width > end]
        if not free_lines:
            continue
        axes.annotate(
            level, (min(peak, right_edge - half_width), 1.0), xycoords=("data", "axes fraction"),
            xytext=(0, 2 + 12 * free_lines[0]), ha="center", va="bottom", **OFFSET,
        )  # fmt: skip
        line_ends[free_lines[0]], named_until = peak + half_width, peak


def _peak_name(row: Row) -> str:
    """Return the name of the peak that limits a row: a memory level or an arithmetic unit."""
    return LEVELS.get(row.memory_level, row.memory_level) if row.bound == "memory" else units.unit(row.unit)


def _draw_shared_peak(
    axes: Axes, section: Section, shown_rows: Sequence[Row], by_bytes: bool, chart_frame: ChartFrame, right_edge: float
) -> None:
    """Draw the peak that all bars share, the datasheet's peak, and the distance of the best variant from the peak."""
    row = shown_rows[0]
    level = _peak_name(row)
    for index, ceilings in enumerate(c for c in (chart_frame.sheet, chart_frame.measured) if c):
        rate = _rate_of(ceilings, row, by_bytes)
        if rate is None:
            continue
        source_text = (
            f"{ceilings.source} {level} {units.byte_rate(rate * 1e9) if by_bytes else units.flop_rate(rate * 1e12)}"
        )
        if rate > right_edge:
            if ceilings.source == "measured":
                axes.annotate(
                    f"{source_text}, {units.ratio(rate / _rate_in_units(row, by_bytes))} the fastest bar →", (1.0, 1.0),
                    xycoords="axes fraction", xytext=(0, 2), ha="right", va="bottom", color=INK, **OFFSET,
                )  # fmt: skip
            continue
        axes.axvline(rate, **line_style(ceilings))
        axes.annotate(
            source_text, (rate, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2 if index else 14), ha="right",
            va="bottom", color=line_style(ceilings)["color"], **OFFSET,
        )  # fmt: skip
    best_own = section.best_own
    position = next((i for i, row in enumerate(shown_rows) if best_own is not None and row.case == best_own.case), None)
    if best_own is not None and position is not None:
        _draw_gap(axes, position, best_own, by_bytes, right_edge)


def _rate_of(ceilings: Peaks, row: Row, by_bytes: bool) -> float | None:
    """Return the rate that peaks allow for the problem, in GB/s or TFLOP/s; None if unknown."""
    bandwidth = ceilings.dram_bytes_per_s
    if row.bound == "memory":
        per_byte = 1e-9 if by_bytes else (row.flops or 0) / (row.compulsory_bytes or 1) * 1e-12
        return bandwidth * per_byte if bandwidth else None
    rate = ceilings.flops_per_s(row.unit)
    return rate * 1e-12 if rate else None


def _draw_gap(axes: Axes, position: int, row: Row, by_bytes: bool, right_edge: float) -> None:
    """Draw an arrow from the best variant that is not a library to its peak, with a label if it fits."""
    distance = distance_to_peak(row)
    begin, end = _rate_in_units(row, by_bytes), _peak_in_units(row, by_bytes)
    if not distance or end is None or end > right_edge:
        return
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, position), xytext=(begin, position), arrowprops=arrow)
    if (end - begin) / right_edge * 72 * WIDTH * axes.get_position().width > text_width_points(
        distance
    ) + GAP_MARGIN_POINTS:
        centre = ((begin + end) / 2, position)
        axes.annotate(distance, centre, xytext=(0, 3), ha="center", va="bottom", **OFFSET)
