"""A run's report: an HTML page, charts as PNG, a table for the terminal, and for each operator a
table of its variants in Markdown, the ladder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from opbench.errors import EnvironmentFault
from opbench.gpu.limits.ceilings import Peaks, committed_ceilings, datasheet
from opbench.report.ladder import ladder_readme
from opbench.report.run.sections import Section, chart_name, file_name, sections
from opbench.report.terminal import print_table
from opbench.results.advice import CaseAdvice
from opbench.results.files import Run
from opbench.results.own_variants import compare_own_variants
from opbench.results.rows import rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from opbench.report.charts.chart import Chart

CHARTS_OF_OPERATOR = 3
CHARTS = 12
"""More charts than this make a page slow to build and to read; the tables hold every number."""

__all__ = ["drawn", "figures", "ladder_readme", "print_table", "styled", "write_report"]


def write_report(
    run: Run,
    folder: Path,
    gpu: str = "h200",
    variants: Sequence[Path] = (),
    advice: Mapping[str, CaseAdvice] = MappingProxyType({}),
) -> list[Path]:
    """Write report.html and its charts as PNG into `folder`; return the written files, the page first.

    For a run without a GPU, times are predicted from the peaks of the GPU model `gpu`. The sources of variants
    are also searched in the extra folders `variants`. `advice` is the advice of a run on a GPU, by case; for a
    run on the CPU it is computed from the counts.
    """
    from opbench.report.charts.libraries import against_libraries_chart
    from opbench.report.charts.svg import report_style, to_png
    from opbench.report.run.listing import listings
    from opbench.report.run.page import PageContext, render
    from opbench.report.template import write_files

    measured, sheet, predicting = _known_peaks(run, gpu)
    all_sections = sections(rows(run, gpu))
    with report_style():
        charts, sections_without_chart = _charts(run, all_sections, measured, sheet)
        crossovers = _crossovers(all_sections)
        library_chart = against_libraries_chart(all_sections)
        results = {r.case: r for r in run.results}
        sources = listings(run, all_sections, variants, predicting)
        context = PageContext(
            run,
            measured,
            sheet,
            predicting,
            charts,
            sections_without_chart,
            results,
            crossovers,
            sources,
            compare_own_variants(run),
            library_chart,
            advice,
        )
        page = render(context, all_sections)
        pictures = {
            f"{chart.name}.png": to_png(chart.figure) for chart in _all_charts(charts, crossovers, library_chart)
        }
    files = {"report.html": page.encode("utf-8"), **pictures}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"{folder}: this folder cannot be created: {error.strerror}; choose another folder with --out DIR",
            kind="unwritable",
            subject=folder,
            value=error.errno,
        ) from None
    remedy = "choose another folder. The results are stored; write the report with: opbench report RUN"
    return write_files(folder, files, remedy)


def figures(run: Run, gpu: str = "h200") -> dict[str, Figure]:
    """Return the matplotlib figures of a run's report by name, such as "matmul-1"."""
    from opbench.report.charts.libraries import against_libraries_chart
    from opbench.report.charts.svg import report_style

    with report_style():
        all_sections = sections(rows(run, gpu))
        measured, sheet, _ = _known_peaks(run, gpu)
        charts, _ = _charts(run, all_sections, measured, sheet)
        charts_in_order = _all_charts(charts, _crossovers(all_sections), against_libraries_chart(all_sections))
        return draw_figures({chart.name: chart for chart in charts_in_order})


def _all_charts(
    charts: Mapping[tuple[str, str], Chart], crossovers: Mapping[str, Chart], library_chart: Chart | None
) -> list[Chart]:
    return [*([library_chart] if library_chart else []), *charts.values(), *crossovers.values()]


def draw_figures(charts: Mapping[str, Chart | None]) -> dict[str, Figure]:
    """Draw each chart once, so that its ticks use the current style; skip charts that are None."""
    figures = {name: chart.figure for name, chart in charts.items() if chart is not None}
    for figure in figures.values():
        figure.draw_without_rendering()
    return figures


def _known_peaks(run: Run, gpu: str) -> tuple[Peaks | None, Peaks | None, Peaks | None]:
    """Return the measured peaks of a run, its GPU's datasheet, and the peaks to predict times from.

    Each may be None; the last one is used for a run without a GPU.
    """
    on_cpu = run.header.backend == "cpu" or (bool(run.results) and all(r.backend == "cpu" for r in run.results))
    measured = None if on_cpu else run.ceilings
    device = run.header.environment.gpu or (measured.gpu if measured else "")
    return measured, datasheet(gpu if on_cpu else device), committed_ceilings(gpu) if on_cpu else None


def _charts(
    run: Run, all_sections: Sequence[Section], measured: Peaks | None, sheet: Peaks | None
) -> tuple[dict[tuple[str, str], Chart], frozenset[tuple[str, str]]]:
    """Return the charts by operator and problem, and the sections that get no chart.

    The chart of an operator over all its problems has the problem "".
    """
    from opbench.report.charts.chart import ChartFrame
    from opbench.report.charts.figures import rate_chart
    from opbench.report.charts.problems import over_problems

    charts: dict[tuple[str, str], Chart] = {}
    drawn_keys = {
        (section.operator, section.problem)
        for section in _to_draw([section for section in all_sections if section.groups])
    }
    for operator in dict.fromkeys(section.operator for section in all_sections):
        sections_of_operator = [section for section in all_sections if section.operator == operator]
        styles = _styles_of(sections_of_operator)
        for index, section in enumerate(sections_of_operator):
            level = section.rows[0].memory_level
            measured_limits, datasheet_limits = (c.at_level(level) if c else None for c in (measured, sheet))
            chart_frame = ChartFrame(measured_limits, datasheet_limits, run.counters, styles)
            if (operator, section.problem) in drawn_keys:
                chart = rate_chart(section, chart_name(operator, index), chart_frame)
                if chart is not None:
                    charts[operator, section.problem] = chart
        problems_chart = over_problems(operator, sections_of_operator, f"{file_name(operator)}-problems", measured)
        if problems_chart is not None:
            charts[operator, ""] = problems_chart
    without_chart = {(section.operator, section.problem) for section in all_sections if section.groups} - charts.keys()
    return charts, frozenset(without_chart)


def _styles_of(sections: Sequence[Section]) -> dict[str, tuple[str, str]]:
    """Return the colour and the shape of each variant in the sections of an operator."""
    from opbench.report.charts.chart import variant_styles

    return variant_styles(list(dict.fromkeys(row.variant for section in sections for row in section.rows)))


def _crossovers(all_sections: Sequence[Section]) -> dict[str, Chart]:
    """Return charts of the fastest variant at each size, for the first `CHARTS` operators with enough sizes."""
    from opbench.report.run.crossover import crossover_chart

    charts: dict[str, Chart] = {}
    for operator in dict.fromkeys(section.operator for section in all_sections):
        sections_of_operator = [section for section in all_sections if section.operator == operator]
        styles = _styles_of(sections_of_operator)
        chart = (
            crossover_chart(operator, sections_of_operator, f"{file_name(operator)}-crossover", styles)
            if len(charts) < CHARTS
            else None
        )
        charts |= {operator: chart} if chart is not None else {}
    return charts


def _to_draw(all_sections: Sequence[Section]) -> list[Section]:
    """Return the sections that get a chart: at most `CHARTS`, or one for each operator if there are more operators.

    Each operator's sections are sorted by number of variants, then by bytes. The first section of every
    operator comes first, then the second of every operator, and so on.
    """
    rounds: list[list[Section]] = [[] for _ in range(CHARTS_OF_OPERATOR)]
    for operator in dict.fromkeys(section.operator for section in all_sections):
        of_operator = sorted((p for p in all_sections if p.operator == operator), key=_chart_priority, reverse=True)
        for round_sections, section in zip(rounds, of_operator, strict=False):
            round_sections.append(section)
    return [section for round_sections in rounds for section in round_sections][: max(CHARTS, len(rounds[0]))]


def _chart_priority(section: Section) -> tuple[int, float]:
    return len({row.variant for row in section.rows}), section.rows[0].compulsory_bytes or 0
