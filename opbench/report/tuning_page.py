"""The HTML page of a search: the best configs, progress over time, and the effect of each tunable."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from opbench import units
from opbench.report.charts.chart import COLOURS, Chart
from opbench.report.charts.svg import report_style
from opbench.report.template import render_template, write_page
from opbench.report.tuning import count_ties, finals_bars, finals_rows, head, summary, verdict
from opbench.results.files import Run
from opbench.results.header import short_revision
from opbench.results.tuning import ENDINGS, Trial, Tuning
from opbench.timing import stats

FILE = "tune.html"
WIDTH = 5.4
"""Width of a chart in inches; its text is still legible at 376 pixels, on a phone."""
COLUMNS = 3
"""Charts in one row, one per tunable."""
MAX_TICKS = 12
"""Most axis labels of the heat map that do not overlap."""


def write_tuning(tuning: Tuning, run: Run | None) -> Path:
    """Write tune.html into the folder of the search; return its path."""
    with report_style():
        charts = [chart.template_values(chart.name) for chart in _draw_charts(tuning)]
    page = render_template(
        "tuning.html.j2",
        title=f"Tuning {tuning.begun.variant}",
        found=tuning,
        commit=short_revision(tuning.begun.revision),
        verdict=verdict(tuning, run),
        summary=summary(tuning),
        head=head(tuning),
        rows=finals_rows(tuning, run),
        bars=finals_bars(tuning, run),
        failures=[r for r in run.results if r.status != "right"] if run else [],
        tie=count_ties(tuning, run),
        charts=charts,
        skipped=_skipped(tuning),
    )
    path = tuning.folder / FILE
    write_page(path, page)
    return path


def _skipped(tuning: Tuning) -> list[tuple[str, int, str]]:
    """Return how often each outcome without a measurement occurred, with the first reason."""
    rows = []
    for ending, description in ENDINGS.items():
        reasons = [re.sub(r"\d+", "…", t.reason) for t in tuning.trials if t.ending == ending]
        first_reason = next((t.reason for t in tuning.trials if t.ending == ending and t.reason), "")
        if reasons and ending != "raced":
            distinct_reasons = len(set(reasons))
            rows.append(
                (
                    description,
                    len(reasons),
                    first_reason + (f" (and {distinct_reasons - 1} other reasons)" if distinct_reasons > 1 else ""),
                )
            )
    return rows


def _draw_charts(tuning: Tuning) -> list[Chart]:
    ranked = tuning.ranked_trials
    if len(ranked) < 2:
        return []
    effects = _effects(tuning, ranked)
    drawn = [_over_time(tuning, ranked), _each_tunable(tuning, ranked, effects)]
    strongest = sorted(effects, key=lambda name: -effects[name])[:2]
    return [*drawn, _heat_map(ranked, strongest[0], strongest[1])] if len(strongest) == 2 else drawn


def _over_time(tuning: Tuning, ranked: Sequence[Trial]) -> Chart:
    """Draw the score of every config over the time of the search, with the best score so far as a line."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.add_subplot()
    best = ranked[0].score or 1.0
    axes.plot([t.at_s for t in ranked], [(t.score or 0) / best for t in ranked], ".", color=COLOURS[4], markersize=3)
    curve = [(at_s, score / best) for at_s, score in tuning.best_so_far()]
    curve.append((tuning.trials[-1].at_s, 1.0))
    axes.step([at for at, _ in curve], [score for _, score in curve], where="post", color=COLOURS[0], linewidth=1.8)
    _logarithmic(axes, max((t.score or 0) / best for t in ranked))
    axes.set_xlabel("time of the search (s)")
    axes.set_ylabel("energy / best energy" if tuning.begun.unit == "J" else "time / best time")
    axes.grid(True)
    description = (
        "Each point is a config; the line is the best config so far. The scale is logarithmic, and the best is 1."
    )
    return Chart("over-time", figure, "Best so far", description, note=description)


TICKS = (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000)


def _logarithmic(axes: Axes, largest: float) -> None:
    """Make an axis logarithmic from the best config on, with plain numbers."""
    axes.set_yscale("log")
    axes.minorticks_off()
    ticks = [
        tick for tick in TICKS if tick <= largest * 1.02 and (largest < 4 or tick in (1, 2, 5, 10, 20, 50, 100, 1000))
    ]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _groups(ranked: Sequence[Trial], name: str) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for trial in ranked:
        groups.setdefault(trial.config[name], []).append(trial.score or 0.0)
    return dict(sorted(groups.items()))


def _effects(tuning: Tuning, ranked: Sequence[Trial]) -> dict[str, float]:
    """Return the effect of each tunable: the best score at its worst value divided by that at its best value."""
    effects = {}
    for name in tuning.begun.tune:
        best = [min(scores) for scores in _groups(ranked, name).values()]
        if len(best) > 1:
            effects[name] = max(best) / min(best)
    return effects


def _each_tunable(tuning: Tuning, ranked: Sequence[Trial], effects: Mapping[str, float]) -> Chart:
    """Draw the best config for each value of each tunable, with the middle half of all configs."""
    names = sorted(effects, key=lambda name: -effects[name])
    rows = max(1, -(-len(names) // COLUMNS))
    figure = Figure(figsize=(WIDTH, 1.9 * rows), layout="constrained")
    best = ranked[0].score or 1.0
    for column, name in enumerate(names):
        axes = figure.add_subplot(rows, COLUMNS, column + 1)
        groups = _groups(ranked, name)
        for index, scores in enumerate(groups.values()):
            low, high = (stats.quantile(scores, q) / best for q in (0.25, 0.75))
            axes.plot([index, index], [low, high], color=COLOURS[4], linewidth=3)
        axes.plot(range(len(groups)), [min(s) / best for s in groups.values()], "o-", color=COLOURS[0], markersize=4)
        tick_indices = range(0, len(groups), -(-len(groups) // 6))
        axes.set_xticks(list(tick_indices), [str(list(groups)[at]) for at in tick_indices], fontsize=7.5)
        _logarithmic(axes, max(stats.quantile(scores, 0.75) / best for scores in groups.values()))
        axes.tick_params(axis="y", labelsize=7.5)
        axes.set_title(f"{name}: {units.ratio(effects[name])}", fontsize=8.5)
        axes.grid(True)
    note = (
        "Points: the best config with that value, over the best of all; bars: the middle half of those tried. "
        "The title says how much the best config loses at the worst value. A search tries good places more often."
    )
    return Chart("each-tunable", figure, "What each tunable does", note, note=note)


def _heat_map(ranked: Sequence[Trial], column_tunable: str, row_tunable: str) -> Chart:
    """Draw the best score for each pair of values of two tunables as a heat map."""
    best = ranked[0].score or 1.0
    columns, rows = list(_groups(ranked, column_tunable)), list(_groups(ranked, row_tunable))
    cells: dict[tuple[int, int], float] = {}
    for trial in ranked:  # sorted by score, so the first trial of a cell is its best
        cells.setdefault((trial.config[row_tunable], trial.config[column_tunable]), (trial.score or 0.0) / best)
    figure = Figure(figsize=(WIDTH, min(6.0, 1.4 + 0.42 * len(rows))), layout="constrained")
    axes = figure.add_subplot()
    grid = [[cells.get((row, column), float("nan")) for column in columns] for row in rows]
    image = axes.imshow(grid, aspect="auto", cmap="viridis_r", vmin=1.0, vmax=min(4.0, max(cells.values())))
    has_numbers = len(columns) <= MAX_TICKS and len(rows) <= MAX_TICKS
    if has_numbers:
        for y, x in itertools.product(range(len(rows)), range(len(columns))):
            value = cells.get((rows[y], columns[x]))
            is_dark = value is not None and value > 1 + 0.5 * (min(4.0, max(cells.values())) - 1)
            text = "–" if value is None else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color="white" if is_dark else "black")
    across, down = (range(0, len(values), -(-len(values) // MAX_TICKS)) for values in (columns, rows))
    axes.set_xticks(list(across), [str(columns[at]) for at in across], fontsize=8)
    axes.set_yticks(list(down), [str(rows[at]) for at in down], fontsize=8)
    axes.set_xlabel(column_tunable)
    axes.set_ylabel(row_tunable)
    figure.colorbar(image, ax=axes, label="ratio to the best", extend="max" if max(cells.values()) > 4.0 else "neither")
    note = (
        "The best config of each pair of values, over the best of all, for the two that matter most; "
        f"{'–' if has_numbers else 'white'}: not tried."
    )
    return Chart("heat-map", figure, f"{column_tunable} and {row_tunable}", note, note=note)
