"""`opbench explain`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import units
from opbench.cli import completion
from opbench.cli.advise import MAX_ADVICE, advice_lines
from opbench.cli.options import case_option, gpu_option, json_option, variants_option
from opbench.cli.run import line_printer, stdout_console
from opbench.errors import EXIT_WRONG
from opbench.insight.diagnosis import group_by_advice, group_headline
from opbench.insight.explain import AnnotatedFile, Explanation, Figure
from opbench.paths import path_from_here
from opbench.report.findings import finding_lines
from opbench.report.traffic_cells import ACCESS_COLUMNS, access_cells, line_cells

if TYPE_CHECKING:
    from rich.console import Console

    from opbench.insight.summary import TrafficSummary
    from opbench.kernels.folders import Catalog
    from opbench.records import JSON
    from opbench.results.advice import CaseAdvice
    from opbench.results.experiment import Experiment
    from opbench.results.own_variants import VariantComparison
    from opbench.running.explaining import ExplainedKernel

CONTEXT_LINES = 2
"""Lines of context shown around each header line with an access."""
MAX_SHOWN_PROBLEMS = 8
"""The most problems in the summary."""
LEGEND = (
    "Request: one access of one warp in the source; the device compiler may merge requests. ≈: predicted from a sample",
    "of the blocks. Lanes, sectors and conflicts are averages per request, collisions are totals. Sectors: 8.0 of 4.0",
    "means that 8 sectors of 32 bytes were moved and 4 would hold the bytes that the lanes asked for.",
    "Pass: 128 bytes through L1, a wavefront of shared memory, a warp's wait at a barrier, or the second path of a",
    "divergent branch. Diverged: the share of warps whose lanes took different paths; branches without are not shown.",
)
BULK_LEGEND = (
    "Bulk: the copy engine, a request a copy, in pieces of 16 bytes; how long it fills shared memory is not known.",
    "Operand: what wgmma reads of shared memory, without bank conflicts, as swizzles have it; others are not known.",
)


@click.command("explain")
@click.argument(
    "names", nargs=-1, required=True, metavar="[CASE|VARIANT|FILE.cu]...", shell_complete=completion.variants
)
@case_option
@gpu_option
@json_option
@variants_option
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Also store the traffic in the folder of this cpu run, for opbench agreement; or the experiments in any run.",
)
@click.option(
    "--times",
    "times_folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="RUN",
    help="Compare the limits of --gpu with the times of the same cases in this run.",
)
@click.option(
    "--experiment",
    is_flag=True,
    help="On a GPU, time the kernel without its loads, stores, shared memory, barriers, products, atomics, addresses.",
)
def explain_command(
    names: tuple[str, ...],
    pattern: str,
    gpu: str,
    as_json: bool,
    roots: tuple[Path, ...],
    run_folder: Path | None,
    times_folder: Path | None,
    experiment: bool,
) -> None:
    """Show the source of a kernel with the memory traffic of each line, counted on the cpu backend.

    CASE is a full name such as 'transpose/shared[ROWS=8](rows=64,cols=64)'. Small sizes are enough, because counts per
    request do not depend on the size. VARIANT is a name such as transpose/shared, FILE.cu is a kernel of your own.
    Both run on the operator's problem of the suite quick, or on the problem of --case. Two or more are compared:
    opbench explain A.cu B.cu

    With --experiment, the time on this GPU is split instead: each kernel is also timed without one class of its work.
    Without a GPU, the instructions of each class are counted.
    """
    from opbench.kernels.folders import Catalog
    from opbench.running.explaining import compare_explained, explain_targets

    if experiment:
        _run_experiment(names, pattern, gpu, as_json, Catalog(roots), run_folder)
        return
    explained_kernels = explain_targets(
        names, pattern, gpu, Catalog(roots), lambda text: click.echo(f"note: {text}", err=True)
    )
    if run_folder is not None:
        for explained_kernel in explained_kernels:
            if not explained_kernel.without_operator:
                case = explained_kernel.explanation.case
                _store(run_folder, "traffic", {"case": case, **explained_kernel.traffic.to_json()})
    comparisons = compare_explained(explained_kernels)
    explanations = [explanation.explanation for explanation in explained_kernels]
    if times_folder is not None:
        explanations = _with_times(explanations, times_folder)
    if as_json and not names[1:]:
        click.echo(json.dumps(_to_json(explanations[0], explained_kernels[0]), indent=1))
    elif as_json:
        document = {
            "cases": [_to_json(*pair) for pair in zip(explanations, explained_kernels, strict=True)],
            "comparisons": [asdict(comparison) for comparison in comparisons],
        }
        click.echo(json.dumps(document, indent=1))
    elif not names[1:]:
        print_explanation(explanations[0], explained_kernels[0].advised, stdout_console())
    else:
        print_side_by_side(explained_kernels, comparisons, stdout_console())
    if any(explanation.findings or not explanation.complete for explanation in explanations):
        click.get_current_context().exit(EXIT_WRONG)


def _to_json(explanation: Explanation, explained_kernel: ExplainedKernel) -> dict[str, JSON]:
    """Return the explanation and the advice on it as JSON values."""
    return {**explanation.to_json(), "advice": explained_kernel.advised.to_json()["advice"]}


def _with_times(explanations: Sequence[Explanation], folder: Path) -> list[Explanation]:
    """Add the median time of each case in a run; raise UsageError if the run has measured none of them."""
    from opbench.errors import UsageError
    from opbench.results.files import read_run

    median_s_by_case = {
        result.case: result.measurement.median_s
        for result in read_run(folder).results
        if result.status == "right" and result.measurement
    }
    case_names = [explanation.case for explanation in explanations]
    if not median_s_by_case.keys() & set(case_names):
        raise UsageError(
            f"--times {folder}: the run has no time of {', '.join(case_names)}; see its cases with: opbench "
            f"report {folder}",
            kind="not-measured",
            subject="--times",
            value=str(folder),
        )
    return [replace(explanation, measured_s=median_s_by_case.get(explanation.case)) for explanation in explanations]


def _run_experiment(
    names: Sequence[str], pattern: str, gpu: str, as_json: bool, catalog: Catalog, run_folder: Path | None
) -> None:
    """Print or store the knock-out experiments of each case; without a GPU print what they would remove."""
    from opbench.report.experiment import experiment_lines
    from opbench.running.experiment import run_experiments

    def show(experiment: Experiment) -> None:
        if as_json:
            click.echo(json.dumps(experiment.to_json()))
        else:
            for text in experiment_lines(experiment):
                click.echo(text)
        if run_folder is not None and experiment.source == "measured":
            _store(run_folder, "experiment", experiment.to_json())

    run_experiments(names, pattern, gpu, catalog, show, lambda text: click.echo(f"note: {text}", err=True))


def _store(folder: Path, line_type: str, value: Mapping[str, JSON]) -> None:
    """Add a line to the results file of a run."""
    from opbench.results.files import RunWriter

    with closing(RunWriter(folder)) as writer:
        writer.write(line_type, value)


# Several cases compared on a terminal -----------------------------------------------------------------------------


def print_side_by_side(
    explained_kernels: Sequence[ExplainedKernel], comparisons: Sequence[VariantComparison], console: Console
) -> None:
    """Print a table of counts for each problem, the differences below it, then what limits each kernel."""
    from opbench.insight.summary import summarise
    from opbench.report.own_variants import sentences
    from opbench.tables import align_columns

    print_line = line_printer(console)
    problems: dict[tuple[str, str], list[ExplainedKernel]] = {}
    for explained_kernel in explained_kernels:
        problems.setdefault((explained_kernel.operator, explained_kernel.problem), []).append(explained_kernel)
    for (operator, problem), kernels_of_problem in problems.items():
        print_line(operator + problem, "bold")
        rows = [
            [explained_kernel.variant + explained_kernel.config, *_count_cells(summarise(explained_kernel.traffic))]
            for explained_kernel in kernels_of_problem
        ]
        for number, text in enumerate(align_columns(COUNT_COLUMNS, rows, (0,))):
            print_line("  " + text, "" if number else "dim")
        for comparison in comparisons:
            if (comparison.operator, comparison.problem) == (operator, problem):
                for sentence in sentences(comparison):
                    print_line("  " + sentence.replace("`", ""), "bold")
        print_line()
    for explained_kernel in explained_kernels:
        print_line(f"{explained_kernel.variant}  {path_from_here(str(explained_kernel.path))}", "bold")
        _print_summary(explained_kernel.explanation, explained_kernel.advised, print_line, _width(console))
    print_line("Sectors per request are actual / ideal. Each kernel line by line: opbench explain FILE.cu", "dim")


COUNT_COLUMNS = ("variant", "sectors/load", "sectors/store", "bytes moved", "bank conflicts")


def _count_cells(summary: TrafficSummary | None) -> list[str]:
    """Return the cells for `COUNT_COLUMNS` without the first; dashes if nothing was counted."""
    if summary is None:
        return ["–"] * (len(COUNT_COLUMNS) - 1)
    pairs = (
        (summary.sectors_per_load, summary.ideal_sectors_per_load),
        (summary.sectors_per_store, summary.ideal_sectors_per_store),
    )
    sectors = ["–" if own is None or ideal is None else f"{own:.1f} / {ideal:.1f}" for own, ideal in pairs]
    return [*sectors, units.si(summary.moved_bytes, "B"), units.percent(summary.bank_conflict_share)]


# Explanation on a terminal ----------------------------------------------------------------------------------------


def print_explanation(explanation: Explanation, advised: CaseAdvice, console: Console) -> None:
    """Print what to change first, then the worst problems, then each source file with its counts before each line."""
    print_line = line_printer(console)
    print_line(explanation.case, "bold")
    print_line(explanation.title, "dim")
    print_line()
    for figure in explanation.figures:
        print_line(f"  {figure.name:32} {_figure_text(figure):>12}  {figure.source}")
    _print_bounds(explanation, print_line)
    if not explanation.complete:
        print_line("\n  a launch did not finish: the numbers count only what ran before it stopped", "red")
    print_line()
    _print_summary(explanation, advised, print_line, _width(console))
    for file in explanation.files:
        _print_file(explanation, file, print_line)
    for entry in explanation.elsewhere:
        location = f"{entry.file or 'unknown file'}:{entry.line or '?'}"
        print_line(f"  {location}  {'  '.join(filter(None, access_cells(explanation, entry.access_text, entry)))}")
    spaces = {entry.space for file in explanation.files for row in file.lines for _, entry in row.labelled_accesses}
    for legend_line in (*LEGEND, *(BULK_LEGEND if spaces & {"bulk", "operand"} else ())):
        print_line(legend_line, "dim")


def _width(console: Console) -> int:
    """Return the most columns of a paragraph; a file or a pipe has no limit."""
    return max(40, min(console.width, 120)) if console.is_terminal else 10_000


def _print_bounds(explanation: Explanation, print_line: Callable[..., None]) -> None:
    """Print the lower bound of each limit of the GPU for the variant, the tightest first."""
    from opbench.report.speed_of_light import BAR_WIDTH, limit_bars

    if not explanation.bounds:
        return
    print_line(f"\n  {f'limits of {explanation.gpu}':16} {'bytes':>9}  {'FLOP/B':>7}  {'at least':>9}", "dim")
    bars = limit_bars(explanation.bounds, explanation.measured_s, measured_by="by the run of --times")
    for bar in bars[: len(bars) - len(explanation.bounds)]:
        print_line(f"  {bar.name:16} {'':>9}  {'':>7}  {units.time(bar.time_s):>9}  {bar.text:{BAR_WIDTH}}  {bar.note}")
    for bound, bar in zip(explanation.bounds, bars[-len(explanation.bounds) :], strict=True):
        bytes_text = units.si(bound.moved_bytes, "B") if bound.moved_bytes is not None else ""
        intensity = f"{bound.intensity:.3g}" if bound.intensity is not None else ""
        first = f"  {bar.name:16} {bytes_text:>9}  {intensity:>7}  {units.time(bound.time_s):>9}"
        print_line(f"{first}  {bar.text:{BAR_WIDTH}}  {bar.note}")


def _figure_text(figure: Figure) -> str:
    """Return a figure's value with its unit, as text."""
    if figure.unit == "s":
        return units.time(figure.value)
    if figure.unit:
        return units.si(figure.value, figure.unit)
    return f"{figure.value:,.0f}" if figure.value >= 10 or figure.value == int(figure.value) else f"{figure.value:.1f}"


def _print_summary(explanation: Explanation, advised: CaseAdvice, print_line: Callable[..., None], width: int) -> None:
    """Print the findings, the advice, then the worst problems of lines that the advice does not repeat."""
    for finding in explanation.findings:
        headline, *further_lines = finding_lines(finding, width=min(width, 100))
        print_line(headline, "red")
        for words in further_lines:
            print_line(words)
        print_line()
    groups = group_by_advice(explanation.problems)
    advised_mechanisms = {advice.mechanism for advice in advised.advice[:MAX_ADVICE]}
    advised_evidence = {advice.evidence for advice in advised.advice[:MAX_ADVICE]}
    if advised.advice:
        print_line("  what to change first", "bold")
        for text in advice_lines(advised):
            print_line(
                textwrap.fill(text, width, initial_indent="  ", subsequent_indent=" " * 9, drop_whitespace=False)
            )
    for group in groups[:MAX_SHOWN_PROBLEMS]:
        print_line(f"  ! {group_headline(group, explanation.problems)}", "yellow")
        # Lines do not repeat what the advice above says.
        texts = [] if group[0].evidence in advised_evidence else [f"{group[0].evidence} ({group[0].source})"]
        texts += [] if group[0].mechanism in advised_mechanisms else [group[0].advice]
        for text in texts:
            print_line(textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 8))
    if (hidden_count := len(groups) - MAX_SHOWN_PROBLEMS) > 0:
        print_line(
            f"    and {hidden_count} smaller {'problem' if hidden_count == 1 else 'problems'}, marked at their lines"
        )
    if not explanation.findings and not explanation.problems:
        print_line("  no problem was found in the accesses of any line", "green")
    if explanation.next_variants:
        print_line(f"  next on the ladder: {', '.join(explanation.next_variants)}")
    print_line()


def _print_file(explanation: Explanation, file: AnnotatedFile, print_line: Callable[..., None]) -> None:
    """Print the kernel's own file in full, or the lines around the accesses of a header."""
    if file is not explanation.files[0]:
        file = file.around_counts(CONTEXT_LINES)
        if not file.lines:
            return
    rows = [(entry, line_cells(explanation, entry)) for entry in file.lines]
    cells = [cells for _, cells_by_access in rows for cells in cells_by_access]
    # Columns that are empty in all lines are hidden.
    shown_columns = [i for i in range(len(ACCESS_COLUMNS)) if any(row[i] for row in cells)]
    widths = {i: max(len(row[i]) for row in [list(ACCESS_COLUMNS), *cells]) for i in shown_columns}
    print_line(path_from_here(file.path), "bold")
    print_line(f"{'line':>5}   {_join_cells(ACCESS_COLUMNS, widths)} │", "dim")
    blank = _join_cells([""] * len(ACCESS_COLUMNS), widths)
    previous_number = 0
    for entry, cells_by_access in rows:
        if entry.number > previous_number + 1:
            print_line(f"{'':>5}   {blank} ⋮", "dim")
        previous_number = entry.number
        line_mark = "✗" if entry.findings else "!" if entry.problems else " "
        style = "red" if entry.findings else "yellow" if entry.problems else "" if cells_by_access else "dim"
        first_cells, *further_cells = [_join_cells(row, widths) for row in cells_by_access] or [blank]
        print_line(f"{entry.number:>5} {line_mark} {first_cells} │ {entry.text}".rstrip(), style)
        for other_cells in further_cells:
            print_line(f"{'':5}   {other_cells} │", style)
    print_line()


def _join_cells(cells: Sequence[str], widths: dict[int, int]) -> str:
    """Join cells in columns, the first left-aligned and the others right-aligned."""
    padded = [f"{cells[i]:>{width}}" if i else f"{cells[i]:<{width}}" for i, width in widths.items()]
    return "  ".join(padded)
