"""Show how times changed between runs, for `opbench history`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import click

from opbench.cli.options import Number, cases_option, json_option, page_option
from opbench.cli.run import stdout_console
from opbench.results.history import TABLES

EPILOG = "\b\nTables of --sql:\n" + "\n".join(
    textwrap.fill(f"{table}({', '.join(columns)})", 78, subsequent_indent="    ") for table, columns in TABLES.items()
)


@click.command("history", epilog=EPILOG)
@click.argument("places", nargs=-1, metavar="[DIR]...", type=click.Path(path_type=Path))
@click.option(
    "--database",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Store the runs in this SQLite file and show all runs in it. Only new or changed runs are read again.",
)
@click.option(
    "--sql", metavar="QUERY", help="Run this SQL query over the tables runs, results and samples (see below)."
)
@cases_option
@click.option(
    "--threshold",
    "threshold_percent",
    default=1.0,
    show_default=True,
    type=Number(min=0, min_open=True),
    metavar="PERCENT",
    help="Ignore smaller steps.",
)
@click.option(
    "--only",
    type=click.Choice(["slower", "faster", "same"]),
    help="Show only the cases that became slower, became faster or stayed the same, by their newest step or, without a "
    "step, by the change from the first to the last time.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every case instead of the first 40 lines.")
@page_option
@json_option
def history_command(
    places: tuple[Path, ...],
    database: Path | None,
    sql: str | None,
    cases: tuple[str, ...],
    threshold_percent: float,
    only: str | None,
    show_all: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show how the time of each case developed over all runs in DIR and its subfolders.

    The table has the first and last time of each case, its trend, and the steps at which its time changed. Cases that
    became slower come first.
    """
    from opbench.report import history as report_text
    from opbench.results import history

    if not places and (database is None or not database.exists()):
        raise click.UsageError(
            "no run is named; name the folders that contain runs, such as: opbench history reports, or a database "
            "with --database FILE"
        )
    connection = history.open_database(database)
    try:
        read_runs = history.add_runs(connection, history.find_runs(places))
        if database is not None:
            click.echo(f"{len(read_runs)} runs read into {database}", err=True)
        if sql is not None:
            _print_rows(*history.query(connection, sql), as_json)
            return
        all_series = history.all_series(connection, cases, threshold_percent / 100)
    finally:
        connection.close()
    if only is not None:
        all_series = [series for series in all_series if series.trend(threshold_percent / 100) == only]
    if out is not None:
        from opbench.report.template import write_page

        write_page(out, report_text.to_page(all_series, threshold_percent / 100))
        click.echo(f"wrote {out}", err=True)
    if as_json:
        click.echo(json.dumps(report_text.to_json(all_series)))
        return
    console = stdout_console()
    for line in report_text.history_lines(all_series, threshold_percent / 100, show_all):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _print_rows(names: list[str], rows: list[tuple[object, ...]], as_json: bool) -> None:
    """Print the result of a query as a table or as JSON."""
    from opbench.tables import align_columns

    if as_json:
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    is_numeric = [all(isinstance(row[i], (int, float, type(None))) for row in rows) for i in range(len(names))]
    cells = [[_cell(value) for value in row] for row in rows]
    for line in align_columns(names, cells, left=[i for i, numeric in enumerate(is_numeric) if not numeric]):
        click.echo(line)


def _cell(value: object) -> str:
    """Return a value of a query as text; "" for NULL."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
