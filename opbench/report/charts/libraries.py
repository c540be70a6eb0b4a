"""A chart of the speedup of the best own variant over the library, problem by problem."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from opbench import units
from opbench.report.charts.chart import COLOURS, Chart, shorten
from opbench.report.charts.svg import INK, MUTED
from opbench.report.run.sections import Section, own_and_library
from opbench.report.run.winner_lead import ratio_over
from opbench.results.rows import Row, tied
from opbench.timing.stats import Ratio

MIN_PROBLEMS, MAX_PROBLEMS = 4, 40
"""Fewest and most problems that are drawn; of more problems the chart shows the slowest and the fastest half."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10, 20, 50, 100)
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
    height = 0.75 + 0.2 * len(shown_pairs)
    figure = Figure(figsize=(8.0, height))
    axes = figure.add_axes((0.36, 0.45 / height, 0.5, 1 - 0.55 / height))
    points: dict[str, str] = {}
    for index, (ratio, section, own_row, library_row) in enumerate(shown_pairs):
        faster, slower = sorted((own_row, library_row), key=lambda row: row.time_s or 0.0)
        colour = TIE if tied(faster, slower) else FASTER if ratio.value > 1 else SLOWER
        axes.plot([1, ratio.value], [index, index], "-", color=colour, linewidth=1.0, alpha=0.5)
        axes.plot([ratio.low, ratio.high], [index, index], "-", color=INK, linewidth=1.4)
        axes.plot(ratio.value, index, "o", color=colour, markersize=6, gid=f"p{index}")
        points[f"p{index}"] = _tooltip(ratio, section, own_row, library_row)
        axes.annotate(
            units.ratio(ratio.value), (1.0, index), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=9, color=colour, annotation_clip=False,
        )  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [value for value in TICKS if low <= value <= high]
    axes.set_xticks(ticks, [f"{value:g}×" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("speedup of the best own variant over the library (right of 1×: faster)")
    axes.set_yticks(
        range(len(shown_pairs)),
        [shorten(f"{section.operator}{section.problem}", 34) for _, section, _, _ in shown_pairs],
    )
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
        text.set_fontsize(8.5)
    axes.set_ylim(len(shown_pairs) - 0.4, -0.6)
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
    )


def _tooltip(ratio: Ratio, section: Section, own_row: Row, library: Row) -> str:
    interval_text = f"[{units.ratio(ratio.low)}, {units.ratio(ratio.high)}]"
    return (
        f"{section.operator}{section.problem}: {own_row.variant} {units.time(own_row.time_s)}, {library.variant} "
        f"{units.time(library.time_s)}, {units.ratio(ratio.value)} {interval_text}"
    )
