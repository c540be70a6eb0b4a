"""Charts of a report: a roofline, bars of bandwidth, and a ladder over problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from opbench import units
from opbench.ceiling import Ceilings
from opbench.frame import Row
from opbench.report.sections import Section, best_configs
from opbench.report.svg import INK, MUTED, PAPER, spread
from opbench.report.terminal import arithmetic_heavy

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours that stand out on white and on near-black."""
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "h")
LABELLED = 16
BARS = 24

Counters = Mapping[str, Mapping[str, Any]]


@dataclass
class Chart:
    """A figure with the words that stand beside it."""

    name: str
    figure: Figure
    title: str
    description: str
    points: dict[str, str] = field(default_factory=dict)
    """Group id of each point to what it says."""
    note: str = ""


def look(variants: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each variant, the same in every chart of an operator."""
    return {
        name: (COLOURS[i % len(COLOURS)], SHAPES[(i + i // len(COLOURS)) % len(SHAPES)])
        for i, name in enumerate(variants)
    }


def performance(
    section: Section,
    name: str,
    measured: Ceilings | None,
    sheet: Ceilings | None,
    counters: Counters,
    looks: Mapping[str, tuple[str, str]],
) -> Chart | None:
    """A section's chart: bars of bandwidth for an operator without FLOPs, else its roofline; None without times."""
    rows = [row for group in section.groups for row, _ in (group.rest or group.rows)]
    if not rows:
        return None
    if section.moves_data_only:
        return _bars(section, name, best_configs(sorted(rows, key=_time)), measured, sheet, looks)
    return _roofline(section, name, sorted(rows, key=_time), measured, sheet, counters, looks)


def _time(row: Row) -> float:
    return row.time_s or math.inf


def row_sentence(row: Row) -> str:
    """What a point says when it is pointed at."""
    ends = (
        f" [{units.time(row.time_low_s)}, {units.time(row.time_high_s)}]" if row.time_low_s and row.time_high_s else ""
    )
    rates = [text for text in (units.byte_rate(row.bytes_per_s), units.flop_rate(row.flops_per_s)) if text != "–"]
    share = [f"{units.percent(row.roof_share)} of the measured roof"] if row.roof_share is not None else []
    return f"{row.name}: {units.time(row.time_s)}{ends}, {', '.join([*rates, *share])}"


# Roofline ---------------------------------------------------------------------------------------------------------


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


def shortened(text: str, most: int = 44) -> str:
    """Text with its middle left out when it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


# Bars -------------------------------------------------------------------------------------------------------------


def _bars(
    section: Section,
    name: str,
    rows: list[Row],
    measured: Ceilings | None,
    sheet: Ceilings | None,
    looks: Mapping[str, tuple[str, str]],
) -> Chart:
    shown = rows[:BARS]
    height = 1.1 + 0.3 * len(shown)
    figure = Figure(figsize=(8.0, height))
    left = 0.03 + 0.0098 * max(len(shortened(row.name, 30)) for row in shown)
    axes = figure.add_axes((left, 0.55 / height, 0.81 - left, 1 - 1.0 / height))
    limits = [(c.dram_bytes_per_s or 0.0) / 1e9 for c in (measured, sheet) if c]
    right = 1.03 * max([*limits, *((r.bytes_per_s or 0) / 1e9 for r in shown)])
    points = {}
    for i, row in enumerate(shown):
        _draw_bar(axes, i, row, looks[row.variant][0], f"p{i}")
        points[f"p{i}"] = row_sentence(row)
    axes.set_xlim(0, right)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [shortened(row.name, 30) for row in shown], parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("compulsory bytes over time (GB/s)")
    axes.grid(True, axis="x")
    _bandwidth_limit(axes, sheet, "datasheet", dashed=True)
    _bandwidth_limit(axes, measured, "measured copy", dashed=False)
    note = f"The fastest {BARS} of {len(rows)} variants." if len(rows) > BARS else ""
    return Chart(
        name,
        figure,
        f"Bandwidth of {section.operator}{section.problem}",
        f"Bars of GB/s for {len(shown)} variants; fastest {row_sentence(shown[0])}. The table above holds the same numbers.",
        points,
        note,
    )


def _draw_bar(axes: Axes, place: int, row: Row, colour: str, gid: str) -> None:
    """One bar with the interval at its end and its numbers in the column at the right."""
    axes.barh(place, (row.bytes_per_s or 0) / 1e9, height=0.62, color=colour)
    axes.patches[-1].set_gid(gid)
    if row.time_low_s and row.time_high_s and row.compulsory_bytes:
        ends = [row.compulsory_bytes / end / 1e9 for end in (row.time_high_s, row.time_low_s)]
        axes.plot(ends, [place, place], "-", color=INK, linewidth=1.4)
    share = f"  {units.percent(row.roof_share)}" if row.roof_share is not None else ""
    axes.annotate(
        units.byte_rate(row.bytes_per_s) + share,
        (1.0, place),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        ha="left",
        fontsize=9,
        annotation_clip=False,
        parse_math=False,
        fontweight="bold" if place == 0 else "normal",
    )


def _bandwidth_limit(axes: Axes, ceilings: Ceilings | None, label: str, *, dashed: bool) -> None:
    if ceilings is None or not ceilings.dram_bytes_per_s:
        return
    x = ceilings.dram_bytes_per_s / 1e9
    axes.axvline(x, color=MUTED if dashed else INK, linewidth=1.1 if dashed else 1.8, linestyle="--" if dashed else "-")
    axes.annotate(
        f"{label} {units.byte_rate(ceilings.dram_bytes_per_s)}",
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 14 if dashed else 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=MUTED if dashed else INK,
        parse_math=False,
    )


# Ladder -----------------------------------------------------------------------------------------------------------


def ladder(operator: str, parts: Sequence[Section], name: str, looks: Mapping[str, tuple[str, str]]) -> Chart | None:
    """How each variant's best config does over an operator's problems; None with fewer than two measured."""
    parts = sorted((s for s in parts if s.groups), key=lambda s: (s.rows[0].compulsory_bytes or 0, s.problem))
    if len(parts) < 2:
        return None
    precision = parts[0].groups[0].precision
    rows = [
        {row.variant: row for g in s.groups if g.precision == precision for row in best_configs(r for r, _ in g.rows)}
        for s in parts
    ]
    share = all(row.roof_share is not None for found in rows for row in found.values())
    flops = any(arithmetic_heavy(row) or row.bound == "compute" for found in rows for row in found.values())
    figure = Figure(figsize=(8.0, 3.6))
    axes = figure.add_axes((0.115, 0.2, 0.635, 0.76))
    ends: list[tuple[float, str, float]] = []
    for variant, (colour, shape) in looks.items():
        line = [(i, _height(found[variant], share, flops)) for i, found in enumerate(rows) if variant in found]
        if line:
            axes.plot(*zip(*line, strict=True), marker=shape, color=colour, linewidth=1.4, markersize=5.5)
            ends.append((line[-1][1], variant, float(line[-1][0])))
    axes.set_xlim(-0.2, len(parts) - 0.8)
    highest = max(_height(row, share, flops) for found in rows for row in found.values())
    axes.set_ylim(0, 1.06 * max(1.0 if share else 0.0, highest))
    if share:
        axes.axhline(1.0, color=INK, linewidth=1.4)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
    step = max(1, math.ceil(len(parts) / 8))
    axes.set_xticks(
        range(0, len(parts), step), short_problems([s.problem for s in parts])[::step], parse_math=False, fontsize=8
    )
    axes.set_ylabel("of the measured roof" if share else "TFLOP/s" if flops else "GB/s")
    axes.grid(True, axis="y")
    _label_ends(figure, axes, sorted(ends))
    return Chart(
        name,
        figure,
        f"{operator} over its problems",
        f"Best config of {len(ends)} variants over {len(parts)} problems, "
        "smallest left. The tables hold the same numbers.",
        note=f"Best config of each {precision} variant; problems by compulsory bytes, smallest left.",
    )


def _height(row: Row, share: bool, flops: bool) -> float:
    value = row.roof_share if share else (row.flops_per_s or 0) / 1e12 if flops else (row.bytes_per_s or 0) / 1e9
    return value or 0.0


def _label_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[float, str, float]]) -> None:
    """Variant names at the right edge, moved apart."""
    box = axes.get_window_extent()
    gap = 10.5 / 72 * figure.dpi
    heights = spread([float(axes.transData.transform((0, y))[1]) for y, _, _ in ends], gap, box.y0, box.y1)
    to_data = axes.transData.inverted()
    right = axes.get_xlim()[1]
    for (y, variant, x), height in zip(ends, heights, strict=True):
        target = float(to_data.transform((0, height))[1])
        axes.annotate(
            "",
            (x, y),
            xytext=(right, target),
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 5},
        )
        axes.annotate(
            shortened(variant, 26),
            (right, target),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=8.5,
            annotation_clip=False,
            parse_math=False,
        )


def short_problems(problems: Sequence[str]) -> list[str]:
    """Problems by the axes in which they differ, one a line."""
    split = [dict(part.partition("=")[::2] for part in problem.strip("()").split(",")) for problem in problems]
    keys = list(dict.fromkeys(key for axes in split for key in axes))
    differing = [key for key in keys if len({axes.get(key) for axes in split}) > 1]
    return [
        _axes_by_value({k: axes[k] for k in differing if k in axes}) or shortened(problem, 24)
        for axes, problem in zip(split, problems, strict=True)
    ]


def _axes_by_value(axes: Mapping[str, str]) -> str:
    """Axes of equal value on one line, such as "m=n=k=1024"; at most three lines."""
    by_value: dict[str, list[str]] = {}
    for key, value in axes.items():
        by_value.setdefault(value, []).append(key)
    return "\n".join(shortened("=".join([*keys, value]), 20) for value, keys in list(by_value.items())[:3])
