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


def roofline(section: Section, name: str, rows: list[Row], scene: Scene) -> Chart:
    """Every row (fastest first) under the measured and the datasheet's roof; each variant's best is named."""
    figure = Figure(figsize=(8.0, 4.7))
    axes = figure.add_axes((0.105, 0.125, 0.875, 0.845))
    best, points = best_configs(rows), dict[str, str]()
    counted = {row.case: x for row in best if (x := _counted(row, scene.counters.get(row.case))) is not None}
    roofs = [c for c in (scene.measured, scene.sheet) if c and c.dram_bytes_per_s and c.fp32_flops_per_s]
    _frame_roofline(axes, rows, list(counted.values()), roofs)
    for ceilings in reversed(roofs):
        _draw_roof(
            axes,
            ceilings,
            main=ceilings is roofs[0],
            points_at=_intensity(best[0]),
        )
    _draw_matrix_roofs(axes, roofs, best, _intensity(best[0]))
    chosen = {row.case for row in best}
    others = [row for row in rows if row.case not in chosen]
    for row in others:
        axes.plot(_intensity(row), _rate(row), ".", color=scene.looks[row.variant][0], markersize=3.5, alpha=0.55)
    for i, row in enumerate(best):
        _draw_point(axes, row, f"p{i}", scene.looks[row.variant])
        points[f"p{i}"] = row_sentence(row)
        if row.case in counted:
            _draw_counted(axes, row, counted[row.case], f"q{i}", scene.looks[row.variant])
            points[f"q{i}"] = f"{row.name} by DRAM traffic that the hardware counted: {counted[row.case]:.3g} FLOP/B"
    _label_points(figure, axes, best[:LABELLED], section.winner, roofs)
    extra = f" Only the fastest {LABELLED} of {len(best)} variants are labelled." if len(best) > LABELLED else ""
    note = (
        "Filled: arithmetic intensity from compulsory bytes. "
        + ("Open: from the DRAM traffic that the counters saw. " if counted else "")
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


def _rate(row: Row) -> float:
    return row.flops_per_s or 1.0


def _counted(row: Row, counters: Mapping[str, Any] | None) -> float | None:
    """Intensity by counted DRAM traffic; None when it was not counted."""
    dram = (counters or {}).get("dram_bytes")
    return row.flops / float(dram) if dram and row.flops else None


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


def _draw_roof(axes: Axes, ceilings: Ceilings, *, main: bool, points_at: float) -> None:
    """One GPU's roof with its name, on the side of the ridge where no point's label is; `main` also names its slope."""
    left, right = axes.get_xlim()
    top = ceilings.fp32_flops_per_s or 1.0
    ridge = top / (ceilings.dram_bytes_per_s or 1.0)
    x = [left, ridge, right]
    axes.plot(x, [_roof(ceilings, v) for v in x], zorder=1.5, **_line(ceilings))
    colour = _line(ceilings)["color"]
    _label_flat(
        axes, f"{ceilings.source} fp32 {units.flop_rate(top)}", top, ridge if points_at > ridge else None, colour
    )
    if not main:
        return
    axes.plot(ridge, top, "o", color=colour, markersize=4, fillstyle="none", zorder=1.6)
    axes.annotate(f"ridge {ridge:.3g} FLOP/B", (ridge, top), xytext=(3, -12), color=MUTED, **OFFSET)
    at = math.sqrt(left * ridge)
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
    words = f"{ceilings.source} DRAM {units.byte_rate(ceilings.dram_bytes_per_s)}"
    label = axes.text(
        at, _roof(ceilings, at) * 1.14, words, ha="center", va="bottom", color=colour, fontsize=8.5, bbox=behind
    )
    label.set(rotation=_slope(axes), rotation_mode="anchor", parse_math=False)


OFFSET: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "parse_math": False}


def _line(ceilings: Ceilings) -> dict[str, Any]:
    """Measured limits are solid, a datasheet's dashed."""
    if ceilings.source == "measured":
        return {"linestyle": "-", "color": INK, "linewidth": 1.8}
    return {"linestyle": (0, (4, 3)), "color": MUTED, "linewidth": 1.1}


def _label_flat(axes: Axes, text: str, rate: float, ridge: float | None, colour: str) -> None:
    """Name a flat roof above its line: beside its ridge when that is given, else at the right end."""
    if ridge is not None:
        axes.annotate(text, (ridge * 1.12, rate), xytext=(0, 3), ha="left", color=colour, **OFFSET)
    else:
        axes.annotate(text, (axes.get_xlim()[1], rate), xytext=(-4, 3), ha="right", color=colour, **OFFSET)


def _draw_matrix_roofs(axes: Axes, ceilings: Sequence[Ceilings], rows: Sequence[Row], points_at: float) -> None:
    """Flat roofs of the matrix units for the precision classes that some variant uses."""
    for precision in sorted({row.precision for row in rows} - {"f32"}):
        known = next((c for c in ceilings if c.matrix_flops_per_s.get(precision)), None)
        if known is None:
            continue
        rate = known.matrix_flops_per_s[precision]
        ridge = rate / (known.dram_bytes_per_s or 1.0)
        axes.plot([ridge, axes.get_xlim()[1]], [rate, rate], **{**_line(known), "linewidth": 1.1})
        text = f"{known.source} {precision} {units.flop_rate(rate)}"
        _label_flat(axes, text, rate, ridge if points_at > ridge else None, MUTED)


def _slope(axes: Axes) -> float:
    """Angle on the page of a line of slope 1 in log-log."""
    box = axes.get_window_extent()
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    return math.degrees(math.atan2(box.height / math.log10(y1 / y0), box.width / math.log10(x1 / x0)))


def _draw_point(axes: Axes, row: Row, gid: str, style: tuple[str, str]) -> None:
    x, rate = _intensity(row), _rate(row)
    if row.time_low_s and row.time_high_s and row.flops:
        axes.plot([x, x], [row.flops / row.time_high_s, row.flops / row.time_low_s], "-", color=style[0], linewidth=1.4)
    axes.plot(x, rate, style[1], color=style[0], markersize=7.5, gid=gid, zorder=3)


def _draw_counted(axes: Axes, row: Row, x: float, gid: str, style: tuple[str, str]) -> None:
    """An open point where the counted traffic puts the row, joined to the filled one."""
    axes.plot([_intensity(row), x], [_rate(row), _rate(row)], "-", color=style[0], linewidth=1.0, alpha=0.7)
    axes.plot(x, _rate(row), style[1], color=style[0], fillstyle="none", markersize=7, gid=gid)


def _label_points(
    figure: Figure, axes: Axes, rows: Sequence[Row], winner: Row | None, roofs: Sequence[Ceilings]
) -> None:
    """Names beside the points in one column, moved apart, each with a thin line to its point; none across a roof."""
    box = axes.get_window_extent()
    gap = 10.5 / 72 * figure.dpi
    flat = [float(axes.transData.transform((1.0, _roof(c, _intensity(rows[0]))))[1]) for c in roofs]
    under = min(flat, default=box.y1)
    found = sorted((float(axes.transData.transform((1.0, _rate(row)))[1]), row.name, row) for row in rows)
    below = [item for item in found if item[0] <= under]
    above = found[len(below) :]
    heights = spread([y for y, _, _ in below], gap, box.y0 + gap / 2, min(box.y1, under) - 0.65 * gap)
    heights += spread([y for y, _, _ in above], gap, max(flat, default=box.y0) + 0.65 * gap, box.y1 - gap / 2)
    for (_, _, row), height in zip(found, heights, strict=True):
        _label_point(figure, axes, row, height, row is winner)


def _label_point(figure: Figure, axes: Axes, row: Row, height: float, bold: bool) -> None:
    """One name at a height in pixels, with its line."""
    point = 1 / 72 * figure.dpi
    x_pixels, y_pixels = axes.transData.transform((_intensity(row), _rate(row)))
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
