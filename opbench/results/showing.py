"""Show a run in a notebook: one line of description and a short table, as self-contained HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from opbench import units
from opbench.results.result import GOOD_STATUSES
from opbench.results.rows import Row, rows
from opbench.results.run_data import COMPILED_AHEAD, RunData

MAX_ROWS = 24
"""Most rows of the table; `Run.frame()` has all of them."""

SHORTEST_SHOWN_S = 0.05
"""A phase below this time is not shown."""

HEADINGS = ("variant", "verdict", "time", "95 % interval", "of peak", "rank")
TEXT_STYLE, NUMBER_STYLE = (
    'style="text-align:left;overflow-wrap:anywhere"',
    'style="text-align:left;white-space:nowrap"',
)


def run_title(run: RunData) -> str:
    """Return the description of a run, such as "relu on NVIDIA H200, 7 cases: 7 right, unfinished"."""
    counts = Counter(result.status for result in run.results)
    header = run.header
    device = header.environment.gpu or f"the {header.backend or 'unknown'} backend"
    verdicts = ", ".join(f"{count} {status}" for status, count in counts.items())
    case_count = units.count_noun(len(run.results), "case") + (f": {verdicts}" if verdicts else "")
    return f"{header.suite or 'run'} on {device}, {case_count}" + ("" if run.finished else ", unfinished")


def phases_text(run: RunData) -> str:
    """Return the phases of a run with their times, such as "samples 40 s, references 12 s, compiled ahead 31 s".

    The longest phase is first; "compiled ahead", which goes on at the same time, is last. "" for a run without times.
    """
    phases_s = dict(run.phases_s)
    ahead_s = phases_s.pop(COMPILED_AHEAD, 0.0)
    ordered = sorted(phases_s.items(), key=lambda phase: -phase[1])
    return ", ".join(
        f"{name} {units.duration(seconds)}"
        for name, seconds in [*ordered, (COMPILED_AHEAD, ahead_s)]
        if seconds >= SHORTEST_SHOWN_S
    )


def to_html(run: RunData) -> str:
    """Return a run as HTML: faults first, then the variants of each problem by time; all text is escaped."""
    ordered = rows(run) if run.of_network else sorted(rows(run), key=_sort_key)
    shown_rows = ordered[:MAX_ROWS]
    headings = "".join(f"<th {NUMBER_STYLE}>{name}</th>" for name in HEADINGS)
    body, previous_problem = "", ""
    for row in shown_rows:
        problem = "" if run.of_network else row.operator + row.problem
        # The problem has a row of its own, so that the table fits into the output of a notebook cell.
        if problem != previous_problem:
            body += f'<tr><th {TEXT_STYLE} colspan="{len(HEADINGS)}">{escape(problem)}</th></tr>'
            previous_problem = problem
        node = row.case.rpartition(")/")[2] + ": " if ")/" in row.case else ""
        name, verdict, *figures = (escape(cell) for cell in _cells(row))
        body += f"<tr><td {TEXT_STYLE}>{escape(node)}{name}</td><td {TEXT_STYLE}>{verdict}</td>"
        body += "".join(f"<td {NUMBER_STYLE}>{figure}</td>" for figure in figures) + "</tr>"
    hidden_count = len(ordered) - len(shown_rows)
    more_text = f"<p>… and {hidden_count} more: run.frame() has all</p>" if hidden_count else ""
    warnings = "".join(f"<p>warning: {escape(warning)}</p>" for warning in run.warnings)
    heading = f"<p><b>{escape(run_title(run))}</b><br><code>{escape(str(run.folder))}</code></p>"
    table = f"<table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>" if shown_rows else ""
    return f"<div>{heading}{warnings}{table}{more_text}</div>"


def _sort_key(row: Row) -> tuple[bool, str, str, float]:
    return row.status in GOOD_STATUSES, row.operator, row.problem, row.time_s or 0.0


def _cells(row: Row) -> Sequence[str]:
    reason = row.reason.strip().splitlines()
    verdict = row.status + (f": {reason[0]}" if reason and row.status not in GOOD_STATUSES else "")
    time = units.time(row.time_s) if row.time_s else "–"
    peak = units.percent(row.peak_share) if row.peak_share is not None else "–"
    interval = units.interval(*(row.times and row.times.interval_s) or (None, None))
    return row.name, verdict, time, interval, peak, row.rank or "–"
