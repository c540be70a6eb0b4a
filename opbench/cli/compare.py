"""Compare two runs, for `opbench compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opbench.cli.options import Number, cases_option, json_option, page_option
from opbench.cli.run import line_printer, show_and_exit, stdout_console
from opbench.results.comparison import RunComparison, compare_runs

STYLES = {"BROKEN": "bold red", "SLOWER": "red", "UNDECIDED": "yellow", "MORE TRAFFIC": "yellow", "FASTER": "green",
          "FIXED": "green", "LESS TRAFFIC": "green"}  # fmt: skip


@click.command("compare")
@click.argument("base", metavar="BASE", type=click.Path(path_type=Path))
@click.argument("new", metavar="NEW", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    "threshold_percent",
    type=Number(min=0, min_open=True),
    metavar="PERCENT",
    help="Ignore changes below this percentage [default: the smallest that the runs can show, at least 1].",
)
@click.option("--force", is_flag=True, help="Compare even if the environments differ.")
@click.option("--all", "show_all", is_flag=True, help="Also list unchanged cases and cases that could not be compared.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="Output format; markdown suits a comment on a pull request.",
)
@cases_option
@page_option
@json_option
def compare_command(
    base: Path,
    new: Path,
    cases: tuple[str, ...],
    threshold_percent: float | None,
    force: bool,
    show_all: bool,
    layout: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare two runs: show which cases of NEW broke, became slower or became faster than in BASE.

    For two runs of a network, the cases are its nodes and the whole network. Two runs of one FILE.cu each are compared
    with each other, even if the variants have different names. Runs without a GPU are compared by memory traffic.

    \b
    Exit codes: 0 no regression · 1 a confirmed regression · 2 usage, also
    different environments · 4 undecided · 5 a case became wrong · 6 nothing
    to compare. If several apply, the first of 5, 1, 4, 0 counts.
    """
    from opbench.networks.records.network_run import read_any_run

    threshold = threshold_percent / 100 if threshold_percent is not None else None
    before, after = read_any_run(base), read_any_run(new)
    for run in (before, after):
        unfinished = [] if run.finished else [f"{run.folder}: this run is not finished; complete it with --resume"]
        for warning in [*run.warnings, *unfinished]:
            click.echo(f"warning: {warning}", err=True)
    comparison = compare_runs(before, after, threshold, force, cases)
    if out is not None:
        from opbench.report.comparison import to_page
        from opbench.report.template import write_page

        write_page(out, to_page(comparison))
        click.echo(f"wrote {out}", err=True)
    show_and_exit(comparison.exit_code, lambda: _print(comparison, "json" if as_json else layout, show_all))


def _print(run_comparison: RunComparison, layout: str, show_all: bool) -> None:
    """Print a comparison in a layout: "table", "markdown" or "json"; `show_all` includes unchanged cases."""
    from opbench.report import comparison as report_text

    if layout == "json":
        click.echo(json.dumps(run_comparison.to_json(), indent=1))
    elif layout == "markdown":
        click.echo(report_text.to_markdown(run_comparison), nl=False)
    else:
        print_line = line_printer(stdout_console())
        for line, change in report_text.comparison_lines(run_comparison, show_all):
            print_line(line, STYLES.get(str(change), ""))
