"""Charts of a report: bars of bandwidth, a ladder over problems, and which chart a section gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from opbench import units
from opbench.gpus.ceilings import LEVELS, Ceilings
from opbench.report.charts.chart import Chart, Scene, row_sentence, shortened, to_the_roof
from opbench.report.charts.roofline import roofline
from opbench.report.charts.roofs import OFFSET, line_of
from opbench.report.charts.svg import INK, MUTED, spread
from opbench.report.run.sections import Section, best_configs
from opbench.report.terminal import arithmetic_heavy
from opbench.results.rows import Row

BARS = 24


def performance(section: Section, name: str, scene: Scene) -> Chart | None:
    """A section's chart: bars of bandwidth for an operator without FLOPs, else its roofline; None without times."""
    rows = [row for group in section.groups for row, _ in (group.rest or group.rows)]
    if not rows:
        return None
    if section.moves_data_only:
        return _bars(section, name, best_configs(sorted(rows, key=_time)), scene)
    return roofline(section, name, sorted(rows, key=_time), scene)


def _time(row: Row) -> float:
    return row.time_s or math.inf


# Bars -------------------------------------------------------------------------------------------------------------


def _bars(section: Section, name: str, rows: list[Row], scene: Scene) -> Chart:
    shown = rows[:BARS]
    height = 1.1 + 0.3 * len(shown)
    figure = Figure(figsize=(8.0, height))
    names = [shortened(row.variant, 30) for row in shown]
    left = 0.03 + 0.0112 * max(map(len, names))
    axes = figure.add_axes((left, 0.55 / height, 0.83 - left, 1 - 1.0 / height))
    limits = [(c.dram_bytes_per_s or 0.0) / 1e9 for c in (scene.measured, scene.sheet) if c]
    right = 1.03 * max([*limits, *((r.bytes_per_s or 0) / 1e9 for r in shown)])
    points = {}
    for i, row in enumerate(shown):
        _draw_bar(axes, i, row, scene.looks[row.variant][0], f"p{i}", bold=row is section.winner)
        points[f"p{i}"] = row_sentence(row)
        if section.best_own is not None and row.case == section.best_own.case:
            _draw_gap(axes, i, row, right)
    axes.set_xlim(0, right)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("compulsory bytes over time (GB/s)")
    axes.grid(True, axis="x")
    level = LEVELS.get(rows[0].memory_level, rows[0].memory_level)
    _bandwidth_limit(axes, scene.sheet, f"datasheet {level}", dashed=True)
    _bandwidth_limit(axes, scene.measured, f"measured {level}", dashed=False)
    note = f"The fastest {BARS} of {len(rows)} variants." if len(rows) > BARS else ""
    return Chart(
        name,
        figure,
        f"Bandwidth of {section.operator}{section.problem}",
        f"Bars of GB/s for {len(shown)} variants; fastest {row_sentence(shown[0])}. "
        "The table above holds the same numbers.",
        points,
        note,
    )


def _draw_gap(axes: Axes, place: int, row: Row, right: float) -> None:
    """How far the best variant that is no library is from the roof: an arrow, with words when they fit."""
    words = to_the_roof(row)
    if not words or row.roof_share is None:
        return
    begin = (row.bytes_per_s or 0) / 1e9
    end = begin / row.roof_share
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, place), xytext=(begin, place), arrowprops=arrow)
    if end - begin > 0.26 * right:
        middle = ((begin + end) / 2, place)
        axes.annotate(words, middle, xytext=(0, 3), ha="center", va="bottom", **OFFSET)


def _draw_bar(axes: Axes, place: int, row: Row, colour: str, gid: str, *, bold: bool) -> None:
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
        fontweight="bold" if bold else "normal",
    )


def _bandwidth_limit(axes: Axes, ceilings: Ceilings | None, label: str, *, dashed: bool) -> None:
    if ceilings is None or not ceilings.dram_bytes_per_s:
        return
    x = ceilings.dram_bytes_per_s / 1e9
    axes.axvline(x, **line_of(ceilings))
    axes.annotate(
        f"{label} {units.byte_rate(ceilings.dram_bytes_per_s)}",
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 14 if dashed else 2),
        ha="right",
        va="bottom",
        color=line_of(ceilings)["color"],
        **OFFSET,
    )


# Ladder -----------------------------------------------------------------------------------------------------------


def ladder(operator: str, parts: Sequence[Section], name: str, looks: Mapping[str, tuple[str, str]]) -> Chart | None:
    """How each variant's best config does over an operator's problems; None with fewer than two measured."""
    parts = sorted((s for s in parts if s.groups), key=lambda s: (s.rows[0].compulsory_bytes or 0, s.problem))
    precisions = [s.groups[0].precision for s in parts]
    precision = max(precisions, key=precisions.count, default="")
    parts = [s for s in parts if any(g.precision == precision for g in s.groups)]
    if len(parts) < 2:
        return None
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
        _axes_by_value({k: axes.get(k, "default") for k in differing}) or shortened(problem, 24)
        for axes, problem in zip(split, problems, strict=True)
    ]


def _axes_by_value(axes: Mapping[str, str]) -> str:
    """Axes of equal value on one line, such as "m=n=k=1024"; at most three lines."""
    by_value: dict[str, list[str]] = {}
    for key, value in axes.items():
        by_value.setdefault(value, []).append(key)
    return "\n".join(shortened("=".join([*keys, value]), 20) for value, keys in list(by_value.items())[:3])
