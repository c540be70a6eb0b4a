"""The roofline of one operator and problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from opbench import units
from opbench.ceiling import Ceilings
from opbench.frame import Row
from opbench.report.chart import Chart, Scene, row_sentence, shortened
from opbench.report.sections import Section, best_configs
from opbench.report.svg import INK, MUTED, PAPER, spread

LABELLED = 16



def _roofline(
    section: Section,
    name: str,
    rows: list[Row],
    measured: Ceilings | None,
    sheet: Ceilings | None,
    counters: Counters,
    looks: Mapping[str, tuple[str, str]],
) -> Chart:
    figure = Figure(figsize=(8.0, 4.7))
    axes = figure.add_axes((0.105, 0.125, 0.875, 0.845))
    best, points = best_configs(rows), dict[str, str]()
    shares = [(row, found) for row in best if (found := _counted(row, counters.get(row.case))) is not None]
    roofs = [c for c in (measured, sheet) if c and c.dram_bytes_per_s and c.fp32_flops_per_s]
    _frame_roofline(axes, rows, [x for _, (x, _) in shares], roofs)
    for ceilings in reversed(roofs):
        _draw_roof(
            axes,
            ceilings,
            "measured" if ceilings is measured else "datasheet",
            dashed=ceilings is not measured,
            main=ceilings is roofs[0],
            points_at=_intensity(best[0]),
        )
    _draw_matrix_roofs(axes, roofs, best, _intensity(best[0]))
    chosen = {row.case for row in best}
    others = [row for row in rows if row.case not in chosen]
    for row in others:
        axes.plot([_intensity(row)], [row.flops_per_s], ".", color=looks[row.variant][0], markersize=3.5, alpha=0.55)
    for i, row in enumerate(best):
        _draw_point(axes, row, f"p{i}", looks[row.variant])
        points[f"p{i}"] = row_sentence(row)
    for i, (row, (x, y)) in enumerate(shares):
        colour, shape = looks[row.variant]
        axes.plot([_intensity(row), x], [row.flops_per_s, y], "-", color=colour, linewidth=1.0, alpha=0.7)
        axes.plot([x], [y], shape, color=colour, fillstyle="none", markersize=7, gid=f"q{i}")
        points[f"q{i}"] = f"{row.name} by DRAM traffic that the hardware counted: {x:.3g} FLOP/B"
    _label_points(figure, axes, best[:LABELLED], section.winner, roofs)
    extra = f" Only the fastest {LABELLED} of {len(best)} variants are labelled." if len(best) > LABELLED else ""
    note = (
        "Filled: arithmetic intensity from compulsory bytes. "
        + ("Open: from the DRAM traffic that the counters saw. " if shares else "")
        + ("Small dots: other configs. " if others else "")
        + extra
    ).strip()
    return Chart(
        name,
        figure,
        f"Roofline of {section.operator}{section.problem}",
        f"FLOP/s over FLOP per byte, both logarithmic; {len(best)} variants, fastest {row_sentence(best[0])}. "
        "The table above holds the same numbers.",
        points,
        note,
    )


def _intensity(row: Row) -> float:
    return (row.flops or 0) / (row.compulsory_bytes or 1)


def _counted(row: Row, counters: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Intensity and rate by counted DRAM traffic; None when it was not counted."""
    dram = (counters or {}).get("dram_bytes")
    if not dram or not row.flops or not row.flops_per_s:
        return None
    return row.flops / float(dram), row.flops_per_s


def _frame_roofline(axes: Axes, rows: Sequence[Row], counted: Sequence[float], roofs: Sequence[Ceilings]) -> None:
    """Scales, limits and ticks; room to the right of the points is for their labels."""
    intensity = [_intensity(row) for row in rows] + list(counted)
    ridges = [(c.fp32_flops_per_s or 1) / (c.dram_bytes_per_s or 1) for c in roofs]
    rates = [row.flops_per_s for row in rows if row.flops_per_s]
    left, right = min([*intensity, *ridges]) / 5, max([*[12 * x for x in intensity], *[8 * r for r in ridges]])
    tops = [c.fp32_flops_per_s or 0 for c in roofs]
    tops += [c.matrix_flops_per_s.get(row.precision, 0.0) for c in roofs for row in rows]
    bottom = min([*rates, *[_roof(roofs[0], left) * 2 for _ in roofs[:1]]]) / 2.5
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, max([*rates, *tops]) * 2.2)
    axes.grid(True, which="major")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.si(y, "", 1).strip()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("FLOP/s")


def _roof(ceilings: Ceilings, intensity: float) -> float:
    return min(ceilings.fp32_flops_per_s or math.inf, intensity * (ceilings.dram_bytes_per_s or math.inf))


def _draw_roof(axes: Axes, ceilings: Ceilings, source: str, *, dashed: bool, main: bool, points_at: float) -> None:
    """One GPU's roof with its name, on the side of the ridge where no point's label is; `main` also names its slope."""
    left, right = axes.get_xlim()
    top = ceilings.fp32_flops_per_s or 1.0
    ridge = top / (ceilings.dram_bytes_per_s or 1.0)
    x = [left, ridge, right]
    colour, line = (MUTED, (0, (4, 3))) if dashed else (INK, "-")
    axes.plot(
        x, [_roof(ceilings, v) for v in x], linestyle=line, color=colour, linewidth=1.1 if dashed else 1.8, zorder=1.5
    )
    words: dict[str, Any] = {"color": colour, "fontsize": 8.5, "parse_math": False}
    _label_flat(axes, f"{source} fp32 {units.flop_rate(top)}", top, ridge, points_at, words)
    if not main:
        return
    axes.plot([ridge], [top], "o", color=colour, markersize=4, fillstyle="none", zorder=1.6)
    axes.annotate(
        f"ridge {ridge:.3g} FLOP/B",
        (ridge, top),
        xytext=(3, -12),
        textcoords="offset points",
        ha="left",
        color=MUTED,
        fontsize=8,
        parse_math=False,
    )
    at = math.sqrt(left * ridge)
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
    axes.text(
        at,
        _roof(ceilings, at) * 1.14,
        f"{source} DRAM {units.byte_rate(ceilings.dram_bytes_per_s)}",
        ha="center",
        va="bottom",
        rotation=_slope(axes),
        rotation_mode="anchor",
        bbox=behind,
        **words,
    )


def _label_flat(axes: Axes, text: str, rate: float, ridge: float, points_at: float, words: Mapping[str, Any]) -> None:
    """Name a flat roof above its line: left where the points lie right of the ridge, else at the right end."""
    beside = points_at > ridge
    x = ridge * 1.12 if beside else axes.get_xlim()[1]
    axes.annotate(
        text,
        (x, rate),
        xytext=(0 if beside else -4, 3),
        textcoords="offset points",
        ha="left" if beside else "right",
        **words,
    )


def _draw_matrix_roofs(axes: Axes, ceilings: Sequence[Ceilings], rows: Sequence[Row], points_at: float) -> None:
    """Flat roofs of the matrix units for the precision classes that some variant uses."""
    for precision in sorted({row.precision for row in rows} - {"f32"}):
        known = next((c for c in ceilings if c.matrix_flops_per_s.get(precision)), None)
        if known is None:
            continue
        rate, dashed = known.matrix_flops_per_s[precision], known.source == "datasheet"
        ridge = rate / (known.dram_bytes_per_s or 1.0)
        axes.plot(
            [ridge, axes.get_xlim()[1]],
            [rate, rate],
            linestyle=(0, (4, 3)) if dashed else "-",
            color=MUTED,
            linewidth=1.1,
        )
        _label_flat(
            axes,
            f"{known.source} {precision} {units.flop_rate(rate)}",
            rate,
            ridge,
            points_at,
            {"color": MUTED, "fontsize": 8.5, "parse_math": False},
        )


def _slope(axes: Axes) -> float:
    """Angle on the page of a line of slope 1 in log-log."""
    box = axes.get_window_extent()
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    return math.degrees(math.atan2(box.height / math.log10(y1 / y0), box.width / math.log10(x1 / x0)))


def _draw_point(axes: Axes, row: Row, gid: str, style: tuple[str, str]) -> None:
    x, rate = _intensity(row), row.flops_per_s or 1.0
    if row.time_low_s and row.time_high_s and row.flops:
        axes.plot([x, x], [row.flops / row.time_high_s, row.flops / row.time_low_s], "-", color=style[0], linewidth=1.4)
    axes.plot([x], [rate], style[1], color=style[0], markersize=7.5, gid=gid, zorder=3)


def _label_points(
    figure: Figure, axes: Axes, rows: Sequence[Row], winner: Row | None, roofs: Sequence[Ceilings]
) -> None:
    """Names beside the points in one column, moved apart, each with a thin line to its point; none across a roof."""
    box = axes.get_window_extent()
    gap = 10.5 / 72 * figure.dpi
    flat = [float(axes.transData.transform((1.0, _roof(c, _intensity(rows[0]))))[1]) for c in roofs]
    under = min(flat, default=box.y1)
    found = sorted((float(axes.transData.transform((1.0, row.flops_per_s or 1.0))[1]), row.name, row) for row in rows)
    below = [item for item in found if item[0] <= under]
    above = found[len(below) :]
    heights = spread([y for y, _, _ in below], gap, box.y0 + gap / 2, min(box.y1, under) - 0.65 * gap)
    heights += spread([y for y, _, _ in above], gap, max(flat, default=box.y0) + 0.65 * gap, box.y1 - gap / 2)
    for (_, _, row), height in zip(found, heights, strict=True):
        _label_point(figure, axes, row, height, row is winner)


def _label_point(figure: Figure, axes: Axes, row: Row, height: float, bold: bool) -> None:
    """One name at a height in pixels, with its line."""
    point = 1 / 72 * figure.dpi
    x_pixels, y_pixels = axes.transData.transform((_intensity(row), row.flops_per_s or 1.0))
    to_data = axes.transData.inverted()
    (x0, y0), (x, y) = (
        to_data.transform((x_pixels + 6 * point, y_pixels)),
        to_data.transform((x_pixels + 22 * point, height)),
    )
    axes.plot([x0, x], [y0, y], "-", color=MUTED, linewidth=0.6)
    share = f"  {units.percent(row.roof_share)}" if row.roof_share is not None else ""
    axes.annotate(
        shortened(row.name) + share,
        (x, y),
        xytext=(2, 0),
        textcoords="offset points",
        va="center",
        ha="left",
        fontsize=8.5,
        parse_math=False,
        fontweight="bold" if bold else "normal",
    )


