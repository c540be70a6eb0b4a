"""`opbench best` and `opbench open`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opbench.cli.options import json_option, variants_option
from opbench.errors import UsageError, unknown_name
from opbench.paths import next_command

PAGE_NAMES = (
    "report.html",
    "network.html",
    "train.html",
    "tune.html",
    "selftest.html",
    "comparison.html",
    "agreement.html",
)
RUNS_FOLDER = Path("reports")


@click.command("best")
@click.argument("names", nargs=-1, metavar="[OPERATOR|RUN|WINNERS]...")
@variants_option
@json_option
def best_command(names: tuple[str, ...], roots: tuple[Path, ...], as_json: bool) -> None:
    """Show the fastest correct variant of each problem, and the variants that tie with it.

    Read the named runs and winners files [default: every GPU run in reports/]. Show the named operators [default: all].
    """
    from opbench.kernels.folders import Catalog
    from opbench.report.book import book_lines
    from opbench.results.book import Book, make_book
    from opbench.results.files import run_file

    catalog = Catalog(roots)
    operator_names = catalog.operator_names()
    # An operator's name is not a path, even if a file or folder has the same name, unless the folder contains a run.
    sources = [
        Path(name)
        for name in names
        if Path(name).exists() and (name not in operator_names or run_file(Path(name)).is_file())
    ]
    operators = [name for name in names if Path(name) not in sources]
    for name in operators:
        if name not in operator_names:
            raise UsageError(
                unknown_name("operator, run or winners file", name, catalog.operator_names(), "opbench list operators")
            )
    book = make_book(sources or _timed_runs(), catalog)
    for note in book.notes:
        click.echo(f"note: {note}", err=True)
    chosen_entries = tuple(entry for entry in book.entries if not operators or entry.operator in operators)
    if not chosen_entries:
        raise UsageError(
            f"none of the named runs contains {' or '.join(operators) or 'a time'}; measure one with: opbench run "
            f"{next(iter(operators), 'OPERATOR')} --backend cuda",
            kind="no-times",
            subject=tuple(operators),
        )
    best = Book(book.mode, chosen_entries)
    click.echo(json.dumps(best.to_json(), indent=1) if as_json else "\n".join(book_lines(best)))


def _timed_runs() -> list[Path]:
    """Return the runs below reports/ that were measured on a GPU; raise UsageError if there is none."""
    from opbench.results.files import read_run, run_files

    folders = [file.parent for file in run_files(RUNS_FOLDER)]
    run_folders = [f for f in folders if f.parent == RUNS_FOLDER and read_run(f).header.backend == "cuda"]
    if not run_folders:
        nested_runs = [folder for folder in folders if folder.parent.parent == RUNS_FOLDER]
        example = f", such as {nested_runs[0]}" if nested_runs else ""
        raise UsageError(
            f"no GPU run was found in {RUNS_FOLDER}/; name a run{example}, or measure one with: opbench run quick "
            "--backend cuda",
            kind="no-run",
            subject=RUNS_FOLDER,
        )
    return run_folders


@click.command("open")
@click.argument("run", type=click.Path(path_type=Path, exists=True))
def open_command(run: Path) -> None:
    """Open the page of RUN in the browser, and print its path."""
    from opbench.results.files import run_file, run_files

    pages = [run] if run.is_file() else [run / name for name in PAGE_NAMES if (run / name).is_file()]
    if not pages:
        runs = [] if run_file(run).is_file() else run_files(run)
        remedy = (
            f"open a run in it: {next_command('open', runs[0].parent)}"
            if runs
            else f"write the page with: {next_command('report', run)}"
        )
        raise UsageError(f"{run}: has no page; {remedy}", kind="no-page", subject=run)
    click.echo(pages[0])
    if click.launch(str(pages[0])) != 0:
        click.echo("no browser could be started", err=True)
