"""The page of an agreement: predicted against measured as a scatter, the summary, and every count that is off."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opbench import units
from opbench.paths import write_atomically
from opbench.report.charts.chart import COLOURS, SHAPES, Chart
from opbench.report.charts.svg import STYLE, to_png, to_svg
from opbench.report.template import render_template
from opbench.results.agreement import NEAR, Agreement, Comparison, corrected, worst

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTHING = 0.5
"""Where a count of 0 is drawn on the logarithmic axes."""


def write_agreement(agreement: Agreement, folder: Path, title: str) -> list[Path]:
    """Write agreement.html and agreement.png into a folder; returns the files written, the page first."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        chart = scatter(agreement.comparisons)
        svg = to_svg(chart.figure, "agreement", chart.title, chart.description, chart.points)
        png = to_png(chart.figure)
    off = worst(agreement.comparisons)
    listed = [*off, *(c for c in corrected(agreement.comparisons) if c not in off)]
    page = render_template("agreement.html.j2", title=title, svg=svg, agreement=agreement, worst=listed)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"agreement.html": page.encode("utf-8"), "agreement.png": png}
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def scatter(comparisons: Sequence[Comparison]) -> Chart:
    """One point a comparison on logarithmic axes, a colour and shape a quantity; those held out are hollow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 6.2), layout="constrained")
    axes = figure.add_subplot()
    points: dict[str, str] = {}
    for number, quantity in enumerate(dict.fromkeys(c.quantity for c in comparisons)):
        colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)]
        label: str | None = quantity.replace("_", " ")
        for index, c in enumerate(c for c in comparisons if c.quantity == quantity):
            gid = f"{quantity}-{index}"
            face = "none" if c.held_out else colour
            x, y = max(c.measured, NOTHING), max(c.predicted, NOTHING)
            if c.upper is not None and c.upper > c.predicted:
                axes.plot([x, x], [y, c.upper], color=colour, linewidth=1, alpha=0.6)
            axes.plot([x], [y], shape, color=colour, markerfacecolor=face, markersize=5, label=label, gid=gid)
            points[gid] = (
                f"{c.case}, {c.quantity}: counted {c.counted}, predicted {c.predicted}, measured {c.measured:.0f}, "
                f"{c.verdict}"
            )
            label = None
    _frame(axes, comparisons)
    description = "Predicted counts of every case against those that the GPU's counters measured, both logarithmic."
    return Chart("agreement", figure, "Predicted against measured", description, points)


def _frame(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Axes, the diagonal with its 5 %, and the legend."""
    from matplotlib.ticker import FuncFormatter

    ends = [NOTHING, max([2.0, *(max(c.measured, c.predicted, c.upper or 0) for c in comparisons)]) * 2]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: units.si(value, "", 1).strip() if value >= 1 else ""))
    axes.plot(ends, ends, color=COLOURS[0], linewidth=0.8, zorder=0)
    axes.fill_between(ends, [e * (1 - NEAR) for e in ends], [e * (1 + NEAR) for e in ends], alpha=0.15, zorder=0)
    axes.set_xlim(NOTHING / 2, ends[1])
    axes.set_ylim(NOTHING / 2, ends[1])
    axes.set_xlabel("measured by the GPU's counters (0 at the left edge)")
    axes.set_ylabel("predicted by the cpu backend; a line up to the upper bound")
    axes.grid(True)
    if comparisons:
        axes.legend(loc="upper left", fontsize=8, frameon=False, title="hollow: held out", title_fontsize=8)
