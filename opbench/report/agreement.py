"""A page that compares predicted with measured counts: a scatter plot, a summary, and all differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opbench import units
from opbench.report.charts.chart import COLOURS, SHAPES, Chart
from opbench.report.charts.svg import report_style, to_png, to_svg
from opbench.report.template import OTHER_FOLDER, render_template, write_files
from opbench.results.agreement import (
    CLOSE_ERROR,
    NEAR_ERROR,
    VERDICTS,
    Agreement,
    CountComparison,
    corrected_comparisons,
    inexact_comparisons,
)
from opbench.results.files import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ZERO_POSITION = 0.5
"""Where a count of 0 is drawn on the logarithmic axes."""


MAX_SHOWN = 12
"""Comparisons listed before the rest are folded away."""


def provenance(cpu: Run, gpu: Run) -> str:
    """Return the names of the compared runs, with GPU and date.

    An example is "counters-cpu against counters · NVIDIA H200 · …".
    """
    entries = [
        f"{cpu.folder.name} against {gpu.folder.name}",
        gpu.header.environment.gpu or "an unnamed GPU",
        f"counted {(cpu.header.started or '?')[:16].replace('T', ' ')}",
        f"measured {(gpu.header.started or '?')[:16].replace('T', ' ')}",
        f"opbench {gpu.header.opbench}" if gpu.header.opbench else "",
    ]
    return " · ".join(entry for entry in entries if entry)


def verdict_sentences(agreement: Agreement) -> str:
    """Return one or two sentences: how many counts agree within which bound, and the largest error."""
    comparisons = agreement.comparisons
    if not comparisons:
        return "Nothing could be compared."
    total, verdicts = len(comparisons), [c.verdict for c in comparisons]
    equal, near, close, outside = (verdicts.count(name) for name in VERDICTS)
    test_set = [c for c in comparisons if c.held_out]
    within = sum(c.verdict in VERDICTS[:2] for c in test_set)
    test_set_text = f" (of the test set {units.percent(within / len(test_set))})" if test_set else ""
    sentence = (
        f"{equal:,} of {total:,} counts ({units.percent(equal / total)}) are predicted exactly and "
        f"{equal + near:,} ({units.percent((equal + near) / total)}) to within {100 * NEAR_ERROR:g} %{test_set_text}; "
        f"{close:,} more to within {100 * CLOSE_ERROR:g} %, {outside:,} {'is' if outside == 1 else 'are'} further off."
    )
    inexact = inexact_comparisons(comparisons)
    if not inexact:
        return sentence
    worst = inexact[0]
    difference = f", off by {units.percent(worst.error)}" if worst.measured else ""
    return (
        f"{sentence} The worst: {worst.quantity.replace('_', ' ')} of {worst.case}, predicted {worst.predicted:,}, "
        f"measured {worst.measured:,.0f}{difference}."
    )


def write_agreement(agreement: Agreement, folder: Path, title: str, source: str = "") -> list[Path]:
    """Write agreement.html and agreement.png into a folder; return the files, the page first.

    `source` describes the origin of the counts.
    """
    with report_style():
        chart = scatter_chart(agreement.comparisons)
        svg = to_svg(chart.figure, "agreement", chart.title, chart.description, chart.points)
        png = to_png(chart.figure)
    inexact = inexact_comparisons(agreement.comparisons)
    listed_comparisons = [*inexact, *(c for c in corrected_comparisons(agreement.comparisons) if c not in inexact)]
    page = render_template(
        "agreement.html.j2", title=title, source=source, verdict=verdict_sentences(agreement), svg=svg,
        agreement=agreement, worst=listed_comparisons[:MAX_SHOWN], rest=listed_comparisons[MAX_SHOWN:], note=chart.note,
    )  # fmt: skip
    files = {"agreement.html": page.encode("utf-8"), "agreement.png": png}
    return write_files(folder, files, OTHER_FOLDER)


def scatter_chart(comparisons: Sequence[CountComparison]) -> Chart:
    """Draw one point per comparison on logarithmic axes; each quantity has its colour and shape.

    Hollow points are cases on which the model was not tuned.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 5.6), layout="constrained")
    axes = figure.add_subplot()
    points: dict[str, str] = {}
    for quantity_index, quantity in enumerate(dict.fromkeys(c.quantity for c in comparisons)):
        colour, shape = COLOURS[quantity_index % len(COLOURS)], SHAPES[quantity_index % len(SHAPES)]
        label: str | None = quantity.replace("_", " ").replace("dram", "DRAM").replace("l2", "L2")
        for index, c in enumerate(c for c in comparisons if c.quantity == quantity):
            gid = f"{quantity}-{index}"
            face_colour = "none" if c.held_out else colour
            x, y = max(c.measured, ZERO_POSITION), max(c.predicted, ZERO_POSITION)
            if c.upper is not None and c.upper > c.predicted:
                axes.plot([x, x], [y, c.upper], color=colour, linewidth=1, alpha=0.6)
            axes.plot([x], [y], shape, color=colour, markerfacecolor=face_colour, markersize=4, label=label, gid=gid)
            points[gid] = (
                f"{c.case}, {c.quantity}: counted {c.counted}, predicted {c.predicted}, measured {c.measured:.0f}, "
                f"{c.verdict}"
            )
            label = None
    _draw_frame(axes, comparisons)
    description = "Predicted counts of every case against those that the GPU's counters measured, both logarithmic."
    note = (
        "Filled: cases used to build the model; hollow: test set. The band is ±5 %; a line ends at the upper bound; "
        "0 is drawn at the edge."
    )
    return Chart("agreement", figure, "Predicted against measured", description, points, note)


def _draw_frame(axes: Axes, comparisons: Sequence[CountComparison]) -> None:
    """Draw the plot without points: logarithmic axes, the diagonal with its 5 % band, and the legend."""
    from matplotlib.ticker import FuncFormatter

    axis_ends = [ZERO_POSITION, max([2.0, *(max(c.measured, c.predicted, c.upper or 0) for c in comparisons)]) * 2]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: units.si(value, "", 1).strip() if value >= 1 else ""))
    axes.plot(axis_ends, axis_ends, color=COLOURS[0], linewidth=0.8, zorder=0)
    axes.fill_between(
        axis_ends,
        [e * (1 - NEAR_ERROR) for e in axis_ends],
        [e * (1 + NEAR_ERROR) for e in axis_ends],
        alpha=0.15,
        zorder=0,
    )
    axes.set_xlim(ZERO_POSITION / 2, axis_ends[1])
    axes.set_ylim(ZERO_POSITION / 2, axis_ends[1])
    axes.set_xlabel("measured by the GPU's counters")
    axes.set_ylabel("predicted by the cpu backend")
    axes.grid(True)
    if comparisons:
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.14, 1.0), ncols=2, fontsize=8, frameon=False, handletextpad=0.3
        )
