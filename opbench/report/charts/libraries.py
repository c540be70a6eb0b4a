"""A chart of the speedup of the best own variant over the library, problem by problem."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from opbench import units
from opbench.kernels.axes import read_axes
from opbench.report.bars import Bar, scaled
from opbench.report.charts.chart import COLOURS, Chart
from opbench.report.charts.problems import axis_labels
from opbench.report.charts.svg import INK, MUTED
from opbench.report.run.sections import Section, own_and_library
from opbench.report.run.winner_lead import ratio_over
from opbench.results.rows import Row, is_tie
from opbench.timing.stats import Ratio

MIN_PROBLEMS, MAX_PROBLEMS = 4, 40
"""Fewest and most problems that are drawn; of more problems the chart shows the slowest and the fastest half."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10, 20, 50, 100)
MIN_TICK_DISTANCE = 0.11
"""Least distance of two ticks, as a part of the axis."""
MAX_LINE = 46
"""Most characters in a line of a problem's label; a longer label has several lines."""
ROW_HEIGHT, EXTRA_LINE = 0.2, 0.7
"""Height of a row with one line of text, in inches; height of each further line, in rows."""
FASTER, SLOWER, TIE = COLOURS[0], COLOURS[1], MUTED


def against_libraries_chart(all_sections: Sequence[Section]) -> Chart | None:
    """Draw the speedup over the library for each problem with its 95 % interval, the largest first.

    Returns None for fewer than `MIN_PROBLEMS` problems with a time of both.
    """
    pairs = [
        (ratio, section, own_row, library_row)
        for section in all_sections
        if (pair := own_and_library(section)) is not None
        for own_row, library_row in [pair]
        if (ratio := ratio_over(own_row, library_row)) is not None
    ]
    pairs.sort(key=lambda entry: -entry[0].value)
    total = len(pairs)
    if total < MIN_PROBLEMS:
        return None
    shown_pairs = pairs if total <= MAX_PROBLEMS else [*pairs[: MAX_PROBLEMS // 2], *pairs[-MAX_PROBLEMS // 2 :]]
    labels = row_labels([section for _, section, _, _ in shown_pairs])
    label_lines = [textwrap.wrap(label, MAX_LINE, break_on_hyphens=False) for label in labels]
    positions, end = _row_positions([len(lines) for lines in label_lines])
    height = 0.75 + ROW_HEIGHT * end
    figure = Figure(figsize=(8.0, height))
    axes = figure.add_axes((0.43, 0.45 / height, 0.46, 1 - 0.55 / height))
    points: dict[str, str] = {}
    bars: list[Bar] = []
    for index, (position, (ratio, section, own_row, library_row)) in enumerate(
        zip(positions, shown_pairs, strict=True)
    ):
        faster, slower = sorted((own_row, library_row), key=lambda row: row.time_s or 0.0)
        colour = TIE if is_tie(faster, slower) else FASTER if ratio.value > 1 else SLOWER
        axes.plot([1, ratio.value], [position, position], "-", color=colour, linewidth=1.0, alpha=0.5)
        axes.plot([ratio.low, ratio.high], [position, position], "-", color=INK, linewidth=1.4)
        axes.plot(ratio.value, position, "o", color=colour, markersize=6, gid=f"p{index}")
        points[f"p{index}"] = _tooltip(ratio, section, own_row, library_row)
        tone = {FASTER: "fast", SLOWER: "slow"}.get(colour, "")
        bars.append(Bar(labels[index], units.ratio(ratio.value), ratio.value, tone=tone))
        axes.annotate(
            units.ratio(ratio.value), (1.0, position), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=9, color=colour, annotation_clip=False,
        )  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = readable_ticks(low, high)
    axes.set_xticks(ticks, [f"{value:g}×" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("speedup of the best own variant over the library (right of 1×: faster)")
    axes.set_yticks(positions, ["\n".join(lines) for lines in label_lines])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8.5)
    axes.set_ylim(end + 0.1, -0.1)
    axes.grid(True, axis="x")
    omitted_text = (
        f" Of {total} problems, the {MAX_PROBLEMS // 2} largest and the {MAX_PROBLEMS // 2} smallest."
        if total > MAX_PROBLEMS
        else ""
    )
    return Chart(
        "libraries",
        figure,
        "Speedup over the library",
        f"The speedup of the best own variant over the library on {len(shown_pairs)} problems. "
        "The table has the numbers.",
        points,
        f"Blue: faster. Orange: slower. Grey: a tie. Black: the 95 % interval.{omitted_text}",
        scaled(bars),
    )


def _row_positions(line_counts: Sequence[int]) -> tuple[list[float], float]:
    """Return the middle of each row, and the end of the last; a row with one line of text has the height 1."""
    positions, end = [], 0.0
    for lines in line_counts:
        row_height = 1 + EXTRA_LINE * (lines - 1)
        positions.append(end + row_height / 2)
        end += row_height
    return positions, end


def readable_ticks(low: float, high: float) -> list[float]:
    """Return the ticks from `low` to `high` whose labels do not overlap, with 1 among them."""
    width = math.log(high / low)
    ticks: list[float] = []
    for value in sorted(TICKS, key=lambda value: abs(math.log(value))):
        if low <= value <= high and all(abs(math.log(value / tick)) > MIN_TICK_DISTANCE * width for tick in ticks):
            ticks.append(value)
    return sorted(ticks)


def row_labels(all_sections: Sequence[Section]) -> list[str]:
    """Return a label per problem: its operator, and as few axes as tell the operator's problems apart."""
    problems_of: dict[str, list[str]] = {}
    for section in all_sections:
        problems_of.setdefault(section.operator, []).append(section.problem)
    texts = {
        (operator, problem): f"{operator} {text}".replace("\n", " ")
        for operator, problems in problems_of.items()
        for problem, text in zip(problems, _distinct_texts(problems), strict=True)
    }
    return [texts[section.operator, section.problem] for section in all_sections]


def _distinct_texts(problems: Sequence[str]) -> list[str]:
    """Return a text per problem of an operator; the axes of most different values stay."""
    if len(problems) == 1:
        return [problems[0].strip("()").replace(",", " ")]
    axes = [read_axes(problem) for problem in problems]
    names = list(dict.fromkeys(name for values in axes for name in values))
    for name in sorted(names, key=lambda name: len({values.get(name) for values in axes})):
        others = [other for other in names if other != name]
        if len({tuple(values.get(other) for other in others) for values in axes}) == len(set(problems)):
            names = others
    return axis_labels([{name: values[name] for name in names if name in values} or values for values in axes])


def _tooltip(ratio: Ratio, section: Section, own_row: Row, library: Row) -> str:
    interval_text = f"[{units.ratio(ratio.low)}, {units.ratio(ratio.high)}]"
    return (
        f"{section.operator}{section.problem}: {own_row.variant} {units.time(own_row.time_s)}, {library.variant} "
        f"{units.time(library.time_s)}, {units.ratio(ratio.value)} {interval_text}"
    )
