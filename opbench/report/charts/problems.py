"""A chart of an operator's variants over its problems, with one row per problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.axes import read_axes
from opbench.report.bars import Bar
from opbench.report.charts.chart import COLOURS, Chart, row_sentence, shorten
from opbench.report.charts.svg import INK, MUTED
from opbench.report.run.above_peak import above_peak_sentences
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row

MAX_PROBLEMS = 30
"""Most problems shown: the ones with the most bytes."""
MAX_LINE_LENGTH = 36
"""Most characters in one line of a label."""
RIGHT_CHARACTERS = 26
"""Number of bold characters that fit at the right of the axes."""
MAX_SHARE = 1.15
"""Percentages of peak above this, as a share, are drawn at the end of the axis; the number is at the right."""
NOTE = (
    "Percentages of a problem refer to the peak of the unit that its fastest variant uses, so that a faster variant is "
    "farther right. The fastest variant is named at the right; bold: not a library."
)
OWN, LIBRARY = (COLOURS[0], "o"), (COLOURS[1], "s")


def over_problems(operator: str, all_sections: Sequence[Section], name: str, measured: Peaks | None) -> Chart | None:
    """Draw the percentage of peak of each variant's best config, problem by problem; None for fewer than two problems.

    Without a known peak, the chart shows the speed relative to the fastest variant.
    """
    all_sections = sorted(
        (s for s in all_sections if s.groups), key=lambda s: (s.rows[0].compulsory_bytes or 0, s.problem)
    )
    precisions = [s.groups[0].precision for s in all_sections]
    precision = max(precisions, key=precisions.count, default="")
    all_sections = [s for s in all_sections if any(g.precision == precision for g in s.groups)]
    total, all_sections = len(all_sections), all_sections[-MAX_PROBLEMS:]
    if total < 2:
        return None
    rows = [best_configs(r for g in s.groups if g.precision == precision for r, _ in g.rows) for s in all_sections]
    shows_peak = all(row.peak_share is not None for problem_rows in rows for row in problem_rows)
    labels = problem_labels([s.problem for s in all_sections])
    row_height = 0.13 + 0.14 * max(label.count("\n") + 1 for label in labels)
    height = 1.0 + row_height * len(all_sections)
    figure = Figure(figsize=(8.0, height))
    widest = max(len(line) for label in labels for line in label.split("\n"))
    left = min(0.4, 0.03 + 0.0088 * widest)
    axes = figure.add_axes((left, 0.5 / height, 0.715 - left, 1 - 0.95 / height))
    points: dict[str, str] = {}
    for index, problem_rows in enumerate(rows):
        _draw_problem(axes, index, problem_rows, shows_peak, points)
    _draw_scale(
        axes,
        labels,
        shows_peak,
        max(_relative_speed(row, problem_rows, shows_peak) for problem_rows in rows for row in problem_rows),
    )
    omitted_text = f" The {MAX_PROBLEMS} largest of {total} problems." if total > MAX_PROBLEMS else ""
    above_peak = above_peak_sentences((row for problem_rows in rows for row in problem_rows), measured).values()
    return Chart(
        name,
        figure,
        f"{operator} over its problems",
        f"Best config of each variant on {len(all_sections)} problems, smallest first. "
        "The tables hold the same numbers.",
        points,
        " ".join(
            [f"Best config of each {precision} variant, the smallest problem first.{omitted_text} {NOTE}", *above_peak]
        ),
        [_fastest_bar(*pair) for pair in zip(labels, rows, strict=True)] if shows_peak else (),
    )


def _fastest_bar(label: str, rows: Sequence[Row]) -> Bar:
    """Return a problem's bar: the percentage of peak of its fastest variant."""
    fastest = min(rows, key=lambda row: row.time_s or 0.0)
    name = f"{label}: {fastest.variant}".replace("\n", " ")
    share = fastest.peak_share or 0.0
    return Bar(name, units.time(fastest.time_s), share, units.percent(share), "" if fastest.library else "fast")


def _relative_speed(row: Row, rows: Sequence[Row], shows_peak: bool) -> float:
    """Return the speed of a row as a share of the peak that applies to the fastest row, or else of the fastest row.

    All rows of a problem share one peak, so that a faster row is always farther right.
    """
    fastest = min(rows, key=lambda other_row: other_row.time_s or 0.0)
    speed = (fastest.time_s or 0.0) / row.time_s if row.time_s else 0.0
    return speed * (fastest.peak_share or 0.0) if shows_peak else speed


def _draw_problem(axes: Axes, position: int, rows: Sequence[Row], shows_peak: bool, points: dict[str, str]) -> None:
    """Draw one problem's row: highlight the best own variant and the best library, and name the fastest."""
    ordered = sorted(rows, key=lambda row: row.time_s or 0.0)
    best_own_row = next((row for row in ordered if not row.library), None)
    library = next((row for row in ordered if row.library), None)
    for row in reversed(ordered):
        share = _relative_speed(row, rows, shows_peak)
        colour, shape = LIBRARY if row is library else OWN if row is best_own_row else (MUTED, "o")
        highlighted = row is best_own_row or row is library
        gid = f"p{len(points)}"
        axes.plot(
            [min(share, MAX_SHARE)],
            [position],
            ">" if share > MAX_SHARE else shape,
            color=colour,
            gid=gid,
            clip_on=False,
            markersize=7 if highlighted else 4,
            fillstyle="full" if highlighted else "none",
            zorder=4 if highlighted else 3,
        )
        points[gid] = f"{row.problem}: {row_sentence(row)}"
    fastest = ordered[0]
    value = f" {units.percent(fastest.peak_share) if shows_peak else units.time(fastest.time_s)}"
    value += " ^" if fastest.above_peak else ""
    name = shorten(fastest.variant, min(20, RIGHT_CHARACTERS - len(value)))
    axes.annotate(
        name + value, (1.0, position), xycoords=("axes fraction", "data"), xytext=(10, 0),
        textcoords="offset points", va="center", ha="left", fontsize=8.5, annotation_clip=False, parse_math=False,
        fontweight="normal" if fastest.library else "bold",
    )  # fmt: skip


def _draw_scale(axes: Axes, labels: Sequence[str], shows_peak: bool, highest: float) -> None:
    """Draw the axes, a line at the peak, and the legend above the axes."""
    axes.set_xlim(0, MAX_SHARE if highest > 0.5 else max(0.05, 1.15 * highest))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels, parse_math=False, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{100 * x:.0f} %" if highest > 0.1 else f"{100 * x:.1f} %")
    )
    axes.set_xlabel("of the measured peak" if shows_peak else "speed, of the fastest's")
    axes.grid(True, axis="both")
    if shows_peak and highest > 0.5:
        axes.axvline(1.0, color=INK, linewidth=1.4)
    for label, (colour, shape), fill_style in (
        ("best own", OWN, "full"), ("best library", LIBRARY, "full"), ("others", (MUTED, "o"), "none"),
    ):  # fmt: skip
        axes.plot([], [], shape, color=colour, fillstyle=fill_style, label=label, markersize=6)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False, fontsize=8.5, borderaxespad=0.2,
        handletextpad=0.2, columnspacing=1.4,
    )  # fmt: skip


def problem_labels(problems: Sequence[str]) -> list[str]:
    """Return a label for each problem with the axes in which problems differ, such as "n=8 h=w=56".

    Adjacent axes of equal value are joined. Labels differ from each other. A label longer than `MAX_LINE_LENGTH` has
    two lines.
    """
    return axis_labels([read_axes(problem) for problem in problems])


def axis_labels(axes_of_problems: Sequence[Mapping[str, int | str]]) -> list[str]:
    """Return the labels of `problem_labels` for the axes of each problem."""
    keys = list(dict.fromkeys(key for axes in axes_of_problems for key in axes))
    differing = {key for key in keys if len({axes.get(key) for axes in axes_of_problems}) > 1}
    return [_draw_labels({k: v for k, v in axes.items() if k in differing}) for axes in axes_of_problems]


def _draw_labels(axes: dict[str, int | str]) -> str:
    grouped_axes: list[tuple[list[str], int | str]] = []
    for key, value in axes.items():
        if grouped_axes and grouped_axes[-1][1] == value:
            grouped_axes[-1][0].append(key)
        else:
            grouped_axes.append(([key], value))
    label_lines = ["=".join([*keys, str(value)]) for keys, value in grouped_axes]
    if len(" ".join(label_lines)) <= MAX_LINE_LENGTH:
        return " ".join(label_lines) or "default"
    break_index = min(
        range(1, len(label_lines) + 1),
        key=lambda i: abs(len(" ".join(label_lines[:i])) - len(" ".join(label_lines[i:]))),
    )
    return "\n".join(filter(None, (" ".join(label_lines[:break_index]), " ".join(label_lines[break_index:]))))
