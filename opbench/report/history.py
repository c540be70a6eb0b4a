"""The times of cases over many runs as text and as an HTML page: steps first, then trends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from opbench import units
from opbench.records import JSON
from opbench.report.run.sections import file_name
from opbench.report.template import render_template
from opbench.results.comparison import percent_change
from opbench.results.history import Point, Series
from opbench.tables import align_columns

HEADINGS = ("case", "runs", "first", "last", "change", "steps", "trend")
BARS = "▁▂▃▄▅▆▇█"
MAX_TREND_LENGTH = 32


SHOWN_LINES = 40
"""Most lines on a terminal, unless `--all` asks for every case."""
TREND_ORDER = ("slower", "faster", "same")


def history_lines(all_series: Sequence[Series], threshold: float = 0.01, show_all: bool = True) -> list[str]:
    """Return one line per case with a time, regressions first, and a summary; at most 40 lines unless `show_all`."""
    timed = sorted((series for series in all_series if series.timed), key=lambda series: _sort_key(series, threshold))
    untimed = len(all_series) - len(timed)
    texts = [f"{units.count_noun(untimed, 'case')} without a time in any run"] if untimed else []
    texts.append(summary(all_series))
    lines_left = SHOWN_LINES - len(texts) - 1
    if not show_all and len(timed) > lines_left:
        trends = Counter(series.trend(threshold) for series in timed[lines_left - 1 :])
        hidden = ", ".join(f"{trends[trend]} {trend}" for trend in TREND_ORDER if trends[trend])
        timed = timed[: lines_left - 1]
        texts.insert(0, f"and {sum(trends.values())} more cases ({hidden}): --all lists them, --case and --only choose")
    headings: tuple[str, ...] = HEADINGS
    rows = [_cells(series) for series in timed]
    if any(point.revision for series in timed for point in series.timed):
        headings, rows = (*HEADINGS, "commits"), [[*_cells(series), commit_range(series)] for series in timed]
    # The case comes last: a terminal wraps long names only, and the numbers stay below each other.
    rows = [[*cells[1:], cells[0]] for cells in rows]
    return [*(align_columns((*headings[1:], "case"), rows, left=(4, 5, 6, 7)) if timed else []), *texts]


def _sort_key(series: Series, threshold: float) -> tuple[int, bool, float, str]:
    """Return a sort key that puts regressions first: confirmed steps before other changes, the largest first."""
    ratio = series.steps[-1][1].ratio if series.steps else series.last_over_first or 1.0
    return TREND_ORDER.index(series.trend(threshold)), not series.steps, -abs(math.log(ratio)), series.case


def _cells(series: Series) -> list[str]:
    times = [point.median_s or 0.0 for point in series.timed]
    steps = ", ".join(f"{percent_change(step.ratio)} {date_and_commit(point)}" for point, step in series.steps)
    change = percent_change(series.last_over_first) if series.last_over_first else "–"
    number_cells = [str(len(series.points)), units.time(times[0]), units.time(times[-1]), change]
    return [series.case, *number_cells, steps, block_bars(times[-MAX_TREND_LENGTH:]) if len(times) > 1 else ""]


def date_and_commit(point: Point) -> str:
    """Return the date and commit of a run, such as "2026-03-04 (1a2b3c4)"."""
    return point.started[:10] + (f" ({point.revision})" if point.revision else "")


def tooltip_text(point: Point) -> str:
    """Return the tooltip of a point: start time and commit of the run."""
    return point.started + (f", commit {point.revision}" if point.revision else "")


def commit_range(series: Series) -> str:
    """Return the commits of a case's first and last time; "" if no commit was recorded."""
    first_revision, last_revision = series.timed[0].revision, series.timed[-1].revision
    return (
        ""
        if not first_revision and not last_revision
        else f"{first_revision or '?'} → {last_revision or '?'}"
        if first_revision != last_revision
        else first_revision
    )


def block_bars(values: Sequence[float]) -> str:
    """Draw values as one line of block characters; values that differ by less than 1 % look the same."""
    low, high = min(values), max(*values, min(values) * 1.01)
    return "".join(BARS[min(len(BARS) - 1, int((v - low) / (high - low) * len(BARS)))] for v in values)


def summary(all_series: Sequence[Series]) -> str:
    """Return a summary such as "12 cases in 30 runs from 2026-01-02 to 2026-03-04: 2 steps, 1 slower and 1 faster"."""
    points = [point for series in all_series for point in series.points]
    if not points:
        return "no case in any run"
    runs, days = len({point.run for point in points}), sorted({point.started[:10] for point in points})
    period = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    ratios = [step.ratio for series in all_series for _, step in series.steps]
    slower = sum(ratio > 1 for ratio in ratios)
    directions = [
        f"{count} {direction}" for count, direction in ((slower, "slower"), (len(ratios) - slower, "faster")) if count
    ]
    steps = f"{units.count_noun(len(ratios), 'step')}, {' and '.join(directions)}" if ratios else "no step"
    return f"{units.count_noun(len(all_series), 'case')} in {units.count_noun(runs, 'run')} {period}: {steps}"


def to_json(all_series: Sequence[Series]) -> list[dict[str, JSON]]:
    """Return every case with its points and steps as JSON data."""
    return [
        {
            "case": series.case,
            "gpu": series.gpu,
            "change": series.last_over_first,
            "points": [{k: v for k, v in vars(point).items() if k != "alike"} for point in series.points],
            "steps": [
                {"run": point.run, "started": point.started, **vars(step), "ratio": step.ratio}
                for point, step in series.steps
            ],
            "environment_changes": [
                {"run": series.points[index].run, "what": change} for index, change in series.changes
            ],
        }
        for series in all_series
    ]


# The page ---------------------------------------------------------------------------------------------------------


MAX_SHOWN_CHANGES = 16
"""Most cases without a step that are drawn: the ones that changed most. The tables list every case."""


def to_page(all_series: Sequence[Series], threshold: float) -> str:
    """Return a self-contained HTML page: steps, then other changes, then a folded table per operator."""
    runs = {point.run: point for series in all_series for point in series.points}
    drawn = [series for series in all_series if len(series.timed) > 1]
    steps = [(series, point, step) for series in all_series for point, step in series.steps]
    steps.sort(key=lambda entry: (entry[1].started, abs(math.log(entry[2].ratio))), reverse=True)
    changed = [s for s in drawn if not s.steps and _total_change(s) > math.log1p(threshold)]
    changed.sort(key=_total_change, reverse=True)
    trends = Counter(series.trend(threshold) for series in drawn)
    return render_template(
        "history.html.j2",
        trend_of=lambda series: series.trend(threshold),
        trends={name: trends[name] for name in ("slower", "faster", "same") if trends[name]},
        title="History",
        summary=summary(all_series),
        threshold=units.percent(threshold),
        gpus=sorted({series.gpu for series in all_series if series.gpu}),
        runs=[(runs[run_number], _environment_changes(all_series, run_number)) for run_number in sorted(runs)],
        steps=[
            (*entry, percent_change(entry[2].ratio), machine_code(entry[0], entry[1]), trend_svg(entry[0]))
            for entry in steps
        ],
        repeated=len(drawn),
        changed=len(changed),
        changes=[(series, _cells(series), trend_svg(series)) for series in changed[:MAX_SHOWN_CHANGES]],
        operators=_operators(drawn),
        single=[series for series in all_series if len(series.timed) == 1],
        untimed=[series for series in all_series if not series.timed],
    )


def _environment_changes(all_series: Sequence[Series], run: int) -> str:
    """Return the differences of environment between a run and the previous run of the same cases."""
    changes = dict.fromkeys(change for s in all_series for index, change in s.changes if s.points[index].run == run)
    return "; ".join(changes)


def _total_change(series: Series) -> float:
    """Return the absolute logarithm of the last time over the first; 0 if unknown."""
    return abs(math.log(series.last_over_first)) if series.last_over_first else 0.0


@dataclass(frozen=True)
class _SeriesRow:
    """One row of an operator's table: a case with its times over the runs."""

    series: Series
    cells: list[str]
    last_s: float | None
    change: float


@dataclass(frozen=True)
class _OperatorTable:
    """The table of one operator: its cases, and the largest change for the heading."""

    name: str
    anchor: str
    steps: int
    worst: str
    rows: list[_SeriesRow]


def _operators(all_series: Sequence[Series]) -> list[_OperatorTable]:
    """Return the table of each operator, with the largest change in its heading."""
    series_by_operator: dict[str, list[Series]] = {}
    for series in all_series:
        series_by_operator.setdefault(series.operator, []).append(series)
    return [
        _OperatorTable(
            operator,
            f"operator-{file_name(operator)}",
            sum(len(s.steps) for s in group),
            percent_change(max(group, key=_total_change).last_over_first or 1.0),
            [_SeriesRow(s, _cells(s), s.timed[-1].median_s, s.last_over_first or 1.0) for s in group],
        )
        for operator, group in series_by_operator.items()
    ]


def machine_code(series: Series, point: Point) -> str:
    """Return "changed", "identical" or "unknown" for the machine code before and after a step.

    "identical" means that the machine, not the code, caused the step.
    """
    index = series.points.index(point)
    earlier = [p.machine_code_sha256 for p in series.points[:index] if p.median_s is not None]
    if not earlier or not earlier[-1] or not point.machine_code_sha256:
        return "unknown"
    return "identical" if earlier[-1] == point.machine_code_sha256 else "changed"


WIDTH, HEIGHT, EDGE = 440.0, 72.0, 8.0
"""Largest size of a trend and its margin, in pixels."""
RUN_WIDTH, FEW_RUNS, LOW_HEIGHT = 48.0, 3, 40.0
"""Width for each run; up to `FEW_RUNS` runs a trend is only `LOW_HEIGHT` high."""
MIN_SPAN = 0.04
"""Least range of the logarithmic time axis, so that 1 % of noise does not fill the chart."""


def trend_svg(series: Series) -> Markup:
    """Draw the times of a case over many runs as inline SVG with a logarithmic time axis.

    It shows each run's median with its interval, the level between steps, the steps, changes of the environment
    as dotted lines, and a cross for each run without a valid time.
    """
    timed = series.timed
    low = math.log(min(point.low_s or point.median_s or 1.0 for point in timed))
    high = math.log(max(point.high_s or point.median_s or 1.0 for point in timed))
    padding = max(0.0, MIN_SPAN - (high - low)) / 2
    low, high = low - padding, high + padding
    gaps = max(1, len(series.points) - 1)
    width = min(WIDTH, 2 * EDGE + RUN_WIDTH * gaps)
    height = HEIGHT if len(series.points) > FEW_RUNS else LOW_HEIGHT
    pixels_per_run = (width - 2 * EDGE) / gaps

    def x(index: float) -> str:
        return f"{EDGE + index * pixels_per_run:.1f}"

    def y(seconds: float) -> str:
        share = (math.log(seconds) - low) / (high - low)
        return f"{height - EDGE - share * (height - 2 * EDGE):.1f}"

    svg_elements = [
        f'<line class="changed" x1="{x(i - 0.5)}" x2="{x(i - 0.5)}" y1="0" y2="{height}">'
        f"<title>{escape(change)}</title></line>"
        for i, change in series.changes
    ]
    starts = [0, *(step.index for _, step in series.steps), len(series.points)]
    levels = [series.steps[0][1].before_s, *(step.after_s for _, step in series.steps)] if series.steps else []
    for level, start, end in zip(levels, starts, starts[1:], strict=False):
        svg_elements.append(
            f'<line class="level" x1="{x(max(0.0, start - 0.4))}" x2="{x(min(len(series.points) - 1, end - 0.6))}" '
            f'y1="{y(level)}" y2="{y(level)}"/>'
        )
    for point, step in series.steps:
        css_class, symbol = ("slower", "▲") if step.ratio > 1 else ("faster", "▼")
        label = escape(f"{percent_change(step.ratio)} from {tooltip_text(point)}")
        svg_elements.append(
            f'<text class="{css_class}" x="{x(step.index - 0.5)}" y="11"><title>{label}</title>{symbol}</text>'
        )
    svg_elements += [_svg_mark(point, x(index), y, height) for index, point in enumerate(series.points)]
    name = escape(f"{series.case} over {len(series.points)} runs", quote=True)
    content = "".join(svg_elements)
    return Markup(
        f'<svg class="trend" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-label="{name}">'
        f"{content}</svg>"
    )


def _svg_mark(point: Point, x: str, y: Callable[[float], str], height: float) -> str:
    """Draw one run's point as SVG, with its numbers as tooltip."""
    if point.median_s is None:
        label = escape(f"{tooltip_text(point)}: {point.status} {point.reason}".strip()[:200])
        return f'<text class="failure" x="{x}" y="{height - 1:g}"><title>{label}</title>×</text>'
    interval_s = (point.low_s or point.median_s, point.high_s or point.median_s)
    label = escape(f"{tooltip_text(point)}: {units.time(point.median_s)} [{units.interval(*interval_s)}]")
    return (
        f'<g><title>{label}</title><line class="ends" x1="{x}" x2="{x}" y1="{y(interval_s[0])}" '
        f'y2="{y(interval_s[1])}"/><circle cx="{x}" cy="{y(point.median_s)}" r="2.6"/></g>'
    )
