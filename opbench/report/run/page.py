"""The HTML page of a run: prepare every text and number that the template prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.gpu.limits.lower_bound import AbovePeak
from opbench.gpu.limits.products import product_key
from opbench.insight.levels import counted_bounds
from opbench.paths import next_command
from opbench.records import JSON, to_json
from opbench.report import own_variants
from opbench.report.bars import Bar
from opbench.report.charts.chart import Chart, distance_to_peak
from opbench.report.findings import finding_lines
from opbench.report.run import sentences, top_bars, traffic_columns
from opbench.report.run.above_peak import above_peak_sentences, footnote_marks
from opbench.report.run.cells import cells, group_cells
from opbench.report.run.evidence import ceilings_table, counters_table, devices_table, flat_rows
from opbench.report.run.listing import Listing
from opbench.report.run.overview import access_cost, overview, problem_facts
from opbench.report.run.sections import Section, anchors_of, file_name, group_by_reason
from opbench.report.speed_of_light import LimitBar, limit_bars
from opbench.report.template import render_template
from opbench.report.terminal import error_texts
from opbench.results.advice import CaseAdvice
from opbench.results.files import Run
from opbench.results.header import short_revision
from opbench.results.own_variants import VariantComparison
from opbench.results.result import Result
from opbench.results.rows import Row
from opbench.timing.clock import mode_text

PAGE_COLUMNS = 110
"""Most characters in a line of a finding on the page."""
ADVICE_SHOWN = 3
"""Most pieces of advice on a variant."""
VARIANTS_ADVISED = 4
"""Most variants of a problem without times that have advice above the table."""
NAMES_SHOWN = 40
"""Most cases listed under one reason or warning; for more, only their number is shown."""


Limits = list[tuple[str, list[LimitBar]]]
"""The bars of profiled variants by name."""
SectionPart = dict[str, object]
"""The template's values for one problem."""


class OperatorPart(TypedDict):
    """The template's data for one operator."""

    name: str
    anchor: str
    sections: list[SectionPart]
    ladder: object
    crossover: object


@dataclass
class PageContext:
    """Data of a run that all sections of its page share."""

    run: Run
    measured: Peaks | None
    sheet: Peaks | None
    predicting: Peaks | None
    """The peaks used to predict; None for a run with a GPU."""
    charts: Mapping[tuple[str, str], Chart]
    """Charts by operator and problem; the chart over all problems of an operator is under ("operator", "")."""
    without_chart: frozenset[tuple[str, str]] = frozenset()
    """Sections without a chart because the report limits the number of charts."""
    results: dict[str, Result] = field(default_factory=dict)
    crossovers: Mapping[str, Chart] = field(default_factory=dict)
    """Which variant wins at which size, by operator."""
    listings: Mapping[tuple[str, str], list[Listing]] = field(default_factory=dict)
    """Annotated sources by operator and problem."""
    own: Sequence[VariantComparison] = ()
    """The user's variants compared with each other."""
    against: Chart | None = None
    """The chart of the speedups over the library, the first of the page."""
    advice: Mapping[str, CaseAdvice] = field(default_factory=dict)
    """Advice on cases that were measured, by case."""

    @property
    def has_times(self) -> bool:
        """Return whether the run has times of a GPU."""
        return self.predicting is None


def render(context: PageContext, all_sections: Sequence[Section]) -> str:
    """Return the page as HTML; the result depends only on the arguments."""
    run = context.run
    rows = [row for section in all_sections for row in section.rows]
    anchors = anchors_of(all_sections)
    lines = [
        overview(section, anchor, context.predicting)
        for section, anchor in sorted(
            zip(all_sections, anchors, strict=True), key=lambda pair: access_cost(pair[0]), reverse=True
        )
    ]
    gpu = sentences.gpu_name(context.predicting) if context.predicting else ""
    bars: tuple[list[Bar], str] = ([], "")
    if context.predicting:
        bars = top_bars.traffic_bars(all_sections, gpu)
    elif not context.against:
        bars = top_bars.winner_bars(all_sections)
    page = render_template(
        "report.html.j2",
        bars=bars[0],
        bars_caption=bars[1],
        answer=_answer(context, all_sections),
        title=run.header.title or run.header.suite or "opbench run",
        facts=_facts(run),
        summary=sentences.summary(run, context.predicting),
        second=_second_sentence(context, all_sections),
        outlook=sentences.lower_bound_explanation(context.predicting) if context.predicting else "",
        incomplete=sentences.missing_cases_text(run),
        timed=context.has_times,
        mode=mode_text(run.header.timing.mode) if run.header.timing.mode else "",
        failing=sentences.failure_summary(run),
        faults=_faults(all_sections, anchors),
        against=context.against.template_values("against") if context.against else None,
        overview=lines,
        marks=footnote_marks(str(line["above"]) for line in lines),
        with_overview=len(all_sections) > 1,
        operators=_operators(context, all_sections, anchors),
        ceilings=ceilings_table(context.measured or context.predicting, context.sheet),
        devices=devices_table(run),
        environment=flat_rows(run.header.environment.to_json()),
        timing=flat_rows(to_json(run.header.timing, omit_defaults=True)),
        commands=_commands(run, all_sections),
        warnings=[(text, _first_names(cases)) for text, cases in sentences.warnings(rows)],
        run_warnings=run.warnings,
        predicting=context.predicting,
        gpu=gpu,
        launch=_empty_launch_sentence(context.predicting),
    )
    return page


def _answer(context: PageContext, all_sections: Sequence[Section]) -> str:
    """Return the result of a run of one problem, for the top of the page; "" for other runs and without a result."""
    if len(all_sections) != 1 or sentences.failure_summary(context.run):
        return ""
    section = all_sections[0]
    if context.has_times:
        return _verdict(context, section)[0] if section.groups else ""
    return top_bars.costliest_sentence(all_sections) or next(iter(_traffic(section)), "")


def _second_sentence(context: PageContext, all_sections: Sequence[Section]) -> str:
    """Return the sentence that follows the number of right cases on the page of a run of several problems.

    With times, it compares opbench with the library. Without times, it names the traffic that costs most; it is empty
    if there is none to name.
    """
    if context.has_times:
        return sentences.library_comparison(all_sections)
    return top_bars.costliest_sentence(all_sections) if len(all_sections) > 1 else ""


def _verdict(context: PageContext, section: Section) -> list[str]:
    """Return the sentences on a problem, the most important first."""
    return [
        *_own_variants(context, section),
        *sentences.verdict(section, context.measured, context.predicting),
        *_traffic(section),
    ]


def _empty_launch_sentence(predicting: Peaks | None) -> str:
    """Return a sentence with the time of an empty kernel's launch, which bounds every predicted time; "" if unknown."""
    floor = predicting.launch_floor_s if predicting else None
    return f". No kernel takes less than the launch of an empty one, {units.time(floor)}" if floor else ""


def _facts(run: Run) -> list[str]:
    """Return the entries below the title: device, date, versions."""
    header = run.header
    commit = short_revision(header.revision)
    phrases = [
        header.suite,
        f"backend {header.backend or '?'}",
        header.environment.device_name,
        header.started,
        f"{units.duration(run.wall_s)} of wall time" if run.wall_s else "",
        f"opbench {header.opbench}" if header.opbench else "",
        commit and f"commit {commit}",
    ]
    return [phrase for phrase in phrases if phrase]


def _first_names(names: Sequence[str]) -> list[str]:
    return [*names[:NAMES_SHOWN], f"and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else list(names)


def _faults(all_sections: Sequence[Section], anchors: Sequence[str]) -> list[dict[str, JSON]]:
    """Return the problems that have cases which are not right, with links to these cases."""
    faults: list[dict[str, JSON]] = [
        {"anchor": anchor, "name": f"{section.operator}{section.problem}", "count": len(section.failures)}
        for section, anchor in zip(all_sections, anchors, strict=True)
        if section.failures
    ]
    return faults[:NAMES_SHOWN]


def _operators(context: PageContext, all_sections: Sequence[Section], anchors: Sequence[str]) -> list[OperatorPart]:
    operators: dict[str, OperatorPart] = {}
    for section, anchor in zip(all_sections, anchors, strict=True):
        empty_entry: OperatorPart = {
            "name": section.operator,
            "anchor": f"operator-{file_name(section.operator)}",
            "sections": [],
            "ladder": None,
            "crossover": None,
        }
        entry = operators.setdefault(section.operator, empty_entry)
        entry["sections"].append(_section(context, section, anchor))
    for name, entry in operators.items():
        chart = context.charts.get((name, ""))
        entry["ladder"] = chart.template_values(f"{entry['anchor']}-problems") if chart else None
        crossover_chart = context.crossovers.get(name)
        entry["crossover"] = crossover_chart.template_values(f"{entry['anchor']}-sizes") if crossover_chart else None
    return list(operators.values())


def _section(context: PageContext, section: Section, anchor: str) -> SectionPart:
    key = (section.operator, section.problem)
    chart = context.charts.get(key)
    ranked = [row for group in section.groups for row, _ in group.rest or group.rows]
    above_peak = above_peak_sentences(ranked, context.measured)
    footnotes = footnote_marks(above_peak)
    return {
        "anchor": anchor,
        "problem": section.problem,
        "operator": section.operator,
        "verdict": _verdict(context, section),
        "next": _best_advice(context, section),
        "no_advice": _reason_without_advice(context, section),
        "next_of": section.subject.variant if section.subject else "",
        "gain": distance_to_peak(section.subject) if section.subject else "",
        "marks": footnotes,
        "notes": {above_peak[AbovePeak(reason)]: mark for reason, mark in footnotes.items()},
        "facts": problem_facts(section),
        "findings": _findings(context, section),
        "groups": [group_cells(group, context.results) for group in section.groups],
        "unmeasured": [
            cells(row, context.results[row.case], "") for row in traffic_columns.sort_by_traffic(section.unmeasured)
        ],
        "counted": _counted(context, section.unmeasured),
        "listings": context.listings.get(key, []),
        "left_out": sentences.skipped_variants_sentence(
            context.run.left_out.get(f"{section.operator}{section.problem}", {})
        ),
        "fault": sentences.fault(section),
        "failures": _failure_rows(section.failures, context.results),
        "unsupported": _failure_rows(section.unsupported, {}),
        "unsupported_count": units.count_noun(len(section.unsupported), "case"),
        "chart": chart.template_values(f"{anchor}--chart") if chart else None,
        "without_chart": key in context.without_chart,
        "counters": counters_table(section, context.run.counters),
        "limits": _limits(section, context),
        "library": any(r.library and r.ranked for r in section.rows),
    }


def _failure_rows(rows: Sequence[Row], results: Mapping[str, Result]) -> list[dict[str, JSON]]:
    """Return the cases that are not right, grouped by reason, each group with its first finding."""
    return [
        {
            "status": rows_of_reason[0].status,
            "names": _first_names([r.name for r in rows_of_reason]),
            "title": rows_of_reason[0].title,
            "reason": _first_finding_text(results.get(rows_of_reason[0].case), reason),
        }
        for rows_of_reason, reason in group_by_reason(rows)
    ]


def _first_finding_text(result: Result | None, reason: str) -> str:
    """Return the first finding with its source line and remedy; the reason if there is no finding."""
    findings = result.verdict.findings if result and result.verdict else ()
    return "\n".join(finding_lines(findings[0], width=PAGE_COLUMNS)) if findings else reason


def _own_variants(context: PageContext, section: Section) -> list[str]:
    """Return sentences that compare the user's variants of a problem."""
    return [
        sentence
        for comparison in context.own
        if (comparison.operator, comparison.problem) == (section.operator, section.problem)
        for sentence in own_variants.sentences(comparison)
    ]


def _traffic(section: Section) -> list[str]:
    """Return a sentence on the counted traffic of a problem's right variants."""
    sentence = traffic_columns.traffic_sentence([row for row in section.rows if row.status == "right"])
    return [sentence] if sentence else []


@dataclass(frozen=True)
class CountedTable:
    """A table of cases that have no measured time: their compiled resources and counted memory traffic."""

    heads: list[tuple[str, str]]
    """Label and unit of each column."""
    cells: dict[str, list[traffic_columns.CountedFigure]]
    """One cell per column, by the name of the case."""
    origin: str
    """Where the numbers come from, such as the GPU whose code was compiled."""
    same: list[str]
    """Columns that are not shown because every row has the same value, each with that value."""


def _counted(context: PageContext, rows: Sequence[Row]) -> CountedTable:
    """Return the columns and cells of rows without a time, and where their numbers come from."""
    cells = {row.case: traffic_columns.figures(row) | _verdict_figures(context.results[row.case], row) for row in rows}
    shown_columns, constant_columns = traffic_columns.split_columns(
        [*traffic_columns.columns(rows), *VERDICT_HEADS], list(cells.values())
    )
    if all(top_bars.traffic_cost(row) == 1.0 for row in rows):
        constant_columns.pop("least", None)  # It is the problem's lower bound, which stands above the table.
    heads = traffic_columns.HEADS | VERDICT_HEADS
    return CountedTable(
        [heads[name] for name in shown_columns],
        {case: [cell[name] for name in shown_columns] for case, cell in cells.items()},
        traffic_columns.provenance(rows, (context.results[row.case].resources_missing for row in rows)),
        [
            f"{heads[name][0]} {figure.text}{f' ({figure.below})' if figure.below else ''}"
            for name, figure in constant_columns.items()
        ],
    )


VERDICT_HEADS = {
    "error": ("worst error", "allowed"),
    "integers": ("with small integers", ""),
    "findings": ("findings", "allowed"),
    "launches": ("launches", ""),
}


def _verdict_figures(result: Result, row: Row) -> dict[str, traffic_columns.CountedFigure]:
    """Return the table cells for a case's check, by column."""
    figure, verdict = traffic_columns.CountedFigure, result.verdict
    if verdict is None:
        return dict.fromkeys(VERDICT_HEADS, figure())
    worst, allowed = error_texts(verdict)
    launches = [launch for launch in verdict.launches if not launch.zero]
    blocks = [math.prod(launch.grid or (0,)) for launch in launches]
    threads = sum(n * math.prod(launch.block or (0,)) for n, launch in zip(blocks, launches, strict=True))
    return {
        "error": figure(worst, f"≤ {allowed}", value=verdict.worst_error),
        "integers": figure(verdict.integers or "–"),
        "findings": figure(str(len(verdict.findings)), value=len(verdict.findings)),
        "launches": figure(str(len(launches)), f"{sum(blocks):,} blocks, {threads:,} threads", value=len(launches))
        if launches
        else figure(),
    }


def _findings(context: PageContext, section: Section) -> list[str]:
    """Return the findings that the table does not show; a text that several variants share appears once."""
    cases_by_finding: dict[str, list[str]] = {}
    for row in section.rows:
        verdict = context.results[row.case].verdict
        for finding in verdict.findings if verdict else ():
            file, line, _ = finding.location_to_show
            location = f" ({Path(file).name}:{line or '?'})" if file else ""
            if finding.message not in row.reason:
                text = f"{finding.rule}: {finding.message or finding.kind}{location}"
                cases_by_finding.setdefault(text, []).append(sentences.code(row.variant))
    return [f"{units.join_words(list(dict.fromkeys(names)))}: {text}" for text, names in cases_by_finding.items()]


def _best_advice(context: PageContext, section: Section) -> list[str]:
    """Return the advice on the subject of a problem.

    Without times: the first advice on the user's own variants, or else on those farthest from the lower bound.
    """
    subject = section.subject
    if subject is not None:
        advised = context.advice.get(subject.case)
        if advised is None and context.advice:  # only the cases farthest from their bound are counted for a page
            return [f"`{next_command('advise', '.', f'{subject.operator}/{subject.variant}')}` says what to change."]
        return advised.sentences(ADVICE_SHOWN) if advised else []
    sources = context.listings.get((section.operator, section.problem), [])
    listed_sources = [source for source in sources if source.own] or sources
    ordered = sorted(listed_sources, key=lambda source: source.advised.share_of_bound)
    return [
        f"`{source.name}`: {sentence}"
        for source in ordered[:VARIANTS_ADVISED]
        for sentence in source.advised.sentences(1)
    ]


def _reason_without_advice(context: PageContext, section: Section) -> str:
    """Return why there is no advice on the subject of a problem; "" if there is advice or no subject."""
    advised = context.advice.get(section.subject.case) if section.subject else None
    return advised.reason if advised and not advised.advice else ""


def _commands(run: Run, all_sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return commands, each with a label, that repeat the run, repeat one case, and profile that case."""
    header = run.header
    target, *roots = header.target or (header.suite or "SUITE",)
    targets, backend = header.targets or (target,), header.backend or "auto"

    def repeat_command(case: str = "") -> str:
        return next_command("run", *targets, variants=roots, backend=backend, seed=header.seed, case=case)

    commands = [("the run", header.command or repeat_command())]
    row = next(
        (section.winner for section in all_sections if section.winner),
        all_sections[0].rows[0] if all_sections else None,
    )
    if row is not None:
        commands.append(("one case", repeat_command(row.case)))
        if backend != "cpu":
            is_file = target.endswith((".cu", ".py"))
            command = next_command(
                "profile", target if is_file else row.case, variants=roots, case=is_file and row.case
            )
            commands.append(("one case under the profiler", command))
    commands.append(("this page again, from the run's folder", "opbench report ."))
    return commands


def _limits(section: Section, context: PageContext) -> Limits:
    """Return the limit bars of each profiled variant in a section, by name; empty for a GPU without known peaks."""
    key = product_key(context.run.header.environment.gpu or (context.measured.gpu if context.measured else ""))
    peaks = context.measured or context.sheet
    if not key or peaks is None:
        return []
    result = []
    for row in section.rows:
        counters = context.run.counters.get(row.case)
        if counters and (time_s := counters.get("time_s")):
            bounds = counted_bounds(counters, key, peaks, None)
            result.append((row.name, limit_bars(bounds, float(time_s), counted=True)))
    return result
