"""A comparison of two runs as text for a terminal, as Markdown for a pull request, and as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from opbench import units
from opbench.report.template import render_template
from opbench.results.comparison import CONFIDENCE, CaseComparison, Change, Exclusion, RunComparison, percent_change
from opbench.tables import align_columns, markdown_table
from opbench.timing import stats

UNCHANGED = (Change.SAME, Change.RIGHT)
"""Changes that need no attention."""
MAX_AXIS_CHANGE = 0.2
"""Largest range of the intervals' axis: ± this relative change."""
MAX_LENGTH = 60_000
"""Most characters of Markdown: a comment on a pull request may have 65,536."""
HEADINGS = ("", "case", "base", "new", "change", "cycles", "machine code", "why")
TEXT_COLUMNS = (0, 1, 6, 7)


def summary(run_comparison: RunComparison) -> str:
    """Return a summary such as "1 SLOWER, 62 SAME of 63 cases; 2 not compared"."""
    counts = ", ".join(f"{count} {name}" for name, count in run_comparison.counts.items()) or "nothing to compare"
    total_text = f" of {units.count_noun(len(run_comparison.cases), 'case')}" if run_comparison.cases else ""
    return f"{counts}{total_text}" + (
        f"; {len(run_comparison.left_out)} not compared" if run_comparison.left_out else ""
    )


def answer_sentence(comparison: RunComparison) -> str:
    """Return the result of a comparison with its worst case, in one sentence."""
    if not comparison.cases:
        return "The runs share no case that could be compared."
    worst = comparison.cases[0]
    count = comparison.counts[worst.change]
    cases = units.count_noun(count, "case")
    match worst.change:
        case Change.BROKEN:
            return f"{cases} broke: right in the base run, not right in the new run. The first is `{worst.case}`."
        case Change.SLOWER:
            change = f" by {percent_change(worst.time.value)}" if worst.time else ""
            return f"{cases} became slower. The worst is `{worst.case}`{change}."
        case Change.UNDECIDED:
            return f"No case became slower. {cases} remain{'s' if count == 1 else ''} undecided: take more samples."
        case Change.MORE_TRAFFIC:
            return f"{cases} moved more data. The worst is `{worst.case}`."
    if not has_times(comparison):
        return _answer_without_times(comparison)
    faster = comparison.counts.get(Change.FASTER, 0)
    return "No case became slower" + (f"; {faster} became faster." if faster else ".")


def _answer_without_times(comparison: RunComparison) -> str:
    """Return the result of a comparison without times, in which no case broke or moved more data."""
    improved = [change for change in (Change.FIXED, Change.LESS_TRAFFIC) if change in comparison.counts]
    if improved:
        counts = ", ".join(f"{comparison.counts[change]} {change}" for change in improved)
        return f"No case broke or moved more data; {counts}."
    total = len(comparison.cases)
    cases = "the case is" if total == 1 else f"all {total} cases are"
    counted = all(case.traffic_ratio is not None for case in comparison.cases)
    return f"Nothing changed: {cases} right in both runs" + (", with the same counted traffic." if counted else ".")


def has_times(comparison: RunComparison) -> bool:
    """Return whether a case has a time in both runs."""
    return any(case.threshold is not None for case in comparison.cases)


def method_sentence(comparison: RunComparison) -> str:
    """Return a sentence on how the comparison decides: confidence, threshold and noise."""
    if not has_times(comparison):
        counted = any(case.traffic_ratio is not None for case in comparison.cases)
        return f"Compared: verdicts{' and counted traffic' if counted else ' only'}; no case has a time in both runs"
    thresholds = sorted({case.threshold for case in comparison.cases if case.threshold is not None})
    threshold_texts = [units.percent(threshold) for threshold in dict.fromkeys((thresholds[0], thresholds[-1]))]
    threshold_text = " to ±".join(threshold_texts)
    text = f"{units.percent(CONFIDENCE)} intervals of the ratio of medians; a change counts beyond ±{threshold_text}"
    noise = comparison.noise
    return text + (f"; identical machine code differs by {units.percent(noise)}" if noise is not None else "")


def comparison_lines(comparison: RunComparison, show_all: bool = False) -> list[tuple[str, Change | None]]:
    """Return the comparison as aligned lines, each with the change of its case.

    The change is None for headings and for cases that were not compared. The last line, the summary, has the
    change of the first case. Cases without a change appear only with `show_all`.
    """
    shown_cases = [case for case in comparison.cases if show_all or case.change not in UNCHANGED]
    result_lines: list[tuple[str, Change | None]] = []
    if shown_cases:
        heading, *rows = align_columns(HEADINGS, [_cells(case) for case in shown_cases], left=TEXT_COLUMNS)
        result_lines += [
            (heading, None),
            *((row, case.change) for row, case in zip(rows, shown_cases, strict=True)),
            ("", None),
        ]
    result_lines += [(line, None) for line in _not_compared(comparison.left_out, show_all)]
    result_lines += [(f"differs: {difference}", None) for difference in comparison.differences]
    if comparison.cases and not shown_cases:
        result_lines.append((answer_sentence(comparison), None))
    return [
        *result_lines,
        (method_sentence(comparison), None),
        (summary(comparison), comparison.cases[0].change if comparison.cases else None),
    ]


MAX_NAMED = 2
"""Most cases named under one reason; for more, only their number is shown."""


def _not_compared(left_out: Mapping[str, Exclusion], show_all: bool) -> list[str]:
    """Return one line per kind of reason why cases were not compared; with `show_all`, one line per case."""
    cases_by_kind: dict[str, list[str]] = {}
    for case, exclusion in left_out.items():
        cases_by_kind.setdefault(exclusion.kind, []).append(case)
    texts = []
    for kind, cases in cases_by_kind.items():
        if show_all or len(cases) <= MAX_NAMED:
            texts += [f"not compared: {case}: {left_out[case].reason}" for case in cases]
        else:
            texts.append(f"not compared: {len(cases)} cases: {kind} (--all names them)")
    return texts


def _cells(case: CaseComparison) -> list[str]:
    change = percent_change(case.time.value) if case.time else "–"
    cycles = percent_change(case.cycles.value) if case.cycles else "–"
    times = [units.time(case.base_s), units.time(case.new_s)]
    return [str(case.change), case.case, *times, change, cycles, case.machine_code, case.reason]


def to_markdown(comparison: RunComparison) -> str:
    """Return the comparison as Markdown for a comment on a pull request; cases without a change are folded."""
    changed = [case for case in comparison.cases if case.change not in UNCHANGED]
    unchanged = [case for case in comparison.cases if case.change in UNCHANGED]
    sections = [f"**opbench compare**: {summary(comparison)}", method_sentence(comparison)]
    sections += [_markdown_table(changed)] if changed else []
    left_out = "\n".join(
        f"- {_markdown_code(case)}: {_escape_markdown(exclusion.reason)}"
        for case, exclusion in comparison.left_out.items()
    )
    differing = "\n".join(f"- {_escape_markdown(str(difference))}" for difference in comparison.differences)
    folded_blocks = (
        ("What the environments do not share", differing),
        (f"{len(comparison.left_out)} not compared", left_out),
        (f"{len(unchanged)} without a change", _markdown_table(unchanged) if unchanged else ""),
    )
    characters_left = MAX_LENGTH - sum(map(len, sections))
    for title, content in folded_blocks:
        if content and len(content) <= characters_left:
            characters_left -= len(content)
            sections.append(_details_block(title, content))
        elif content:
            sections.append(f"{title}: too many for a comment; see --out FILE.html")
    return "\n\n".join(sections) + "\n"


def _markdown_table(cases: Sequence[CaseComparison]) -> str:
    rows = []
    for case in cases:
        change, name, *middle_cells, why = _cells(case)
        rows.append((f"**{change}**", _markdown_code(name), *middle_cells, _escape_markdown(why)))
    return "\n".join(markdown_table(HEADINGS, rows, left=TEXT_COLUMNS))


def _details_block(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _markdown_code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _escape_markdown(text: str) -> str:
    """Escape Markdown's special characters: a reason may quote a compiler."""
    for sign in ("\\", "`", "*", "_", "|", "<", "[", "]"):
        text = text.replace(sign, f"\\{sign}")
    return text


def to_page(comparison: RunComparison) -> str:
    """Return the comparison as a self-contained HTML page: every case with its interval and the threshold."""
    timed = [case for case in comparison.cases if case.time is not None]
    largest_log_ratio = max(
        (abs(math.log(end)) for c in timed if c.time for end in (c.time.low, c.time.high)), default=0.0
    )
    widest = max((case.threshold or 0.0 for case in timed), default=0.0)
    axis_change = min(MAX_AXIS_CHANGE, max(math.expm1(largest_log_ratio), 2 * widest)) or MAX_AXIS_CHANGE
    rows = [
        (case, _cells(case), interval_mark(case.time, case.threshold or 0.0, axis_change) if case.time else "")
        for case in comparison.cases
    ]
    return render_template(
        "comparison.html.j2",
        title="Comparison of two runs",
        comparison=comparison,
        loud=[row for row in rows if row[0].change not in UNCHANGED],
        quiet=[row for row in rows if row[0].change in UNCHANGED],
        answer=answer_sentence(comparison),
        summary=summary(comparison),
        method=method_sentence(comparison),
        ratio_method=stats.RATIO_METHOD,
        reach=units.percent(axis_change),
    )


def interval_mark(ratio: stats.Ratio, threshold: float, axis_change: float) -> Markup:
    """Draw the interval of a ratio as inline SVG: a line with a dot in its middle, over a band for the threshold.

    The axis is logarithmic and ends at ± `axis_change`; an arrow replaces the dot if the middle lies beyond the axis.
    """

    width = 180

    def to_pixels(value: float) -> float:
        share = math.log(value) / math.log1p(axis_change)
        return width / 2 * (1 + max(-1.0, min(1.0, share)) * 0.94)

    low, high, value_x = to_pixels(ratio.low), to_pixels(ratio.high), to_pixels(ratio.value)
    band = to_pixels(1 / (1 + threshold)), to_pixels(1 + threshold)
    label = f"{percent_change(ratio.value)}, from {percent_change(ratio.low)} to {percent_change(ratio.high)}"
    arrow_sign = "◂" if ratio.value < 1 / (1 + axis_change) else "▸" if ratio.value > 1 + axis_change else ""
    arrow = f'<text x="{value_x:.1f}" y="13" text-anchor="middle">{arrow_sign}</text>' if arrow_sign else ""
    dot = "" if arrow_sign else f'<circle cx="{value_x:.1f}" cy="9" r="3"/>'
    return Markup(
        f'<svg class="interval" viewBox="0 0 {width} 18" role="img" aria-label="{label}"><title>{label}</title>'
        f'<rect x="{band[0]:.1f}" y="1" width="{band[1] - band[0]:.1f}" height="16"/>'
        f'<line class="axis" x1="{width / 2}" x2="{width / 2}" y1="0" y2="18"/>'
        f'<line x1="{low:.1f}" x2="{max(high, low + 1):.1f}" y1="9" y2="9"/>{dot}{arrow}</svg>'
    )
