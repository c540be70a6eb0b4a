"""Write the fastest variant of each problem to a file, for `opbench book`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from opbench import units
from opbench.cli.options import json_option, variants_option


@click.command("book")
@click.argument("sources", nargs=-1, required=True, metavar="RUNS|BOOKS...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="The winners file to write; without this option, only print the table.",
)
@variants_option
@json_option
def book_command(sources: tuple[Path, ...], out: Path | None, roots: tuple[Path, ...], as_json: bool) -> None:
    """Write a winners file: the fastest variant of every problem in some runs, for use by other programs.

    The file has one entry per operator, problem, precision and GPU: the fastest correct case with its interval, the
    cases that tie with it, and the fastest library call. Nodes of a network run count as cases, too. If a case was
    measured several times, the newest measurement counts. The winner is the case with the smallest median.
    """
    from opbench.kernels.folders import Catalog
    from opbench.networks.records.network_run import read_case_run
    from opbench.report.book import book_lines
    from opbench.results.book import make_book

    catalog = Catalog(roots)
    book = make_book(sources, catalog, read_case_run)
    for note in book.notes:
        click.echo(f"note: {note}", err=True)
    if edited := book.edited(catalog):
        more = f" and {len(edited) - 1} more" if len(edited) > 1 else ""
        click.echo(f"note: {edited[0]}{more}: the code was edited since it was measured", err=True)
    if out is not None:
        book.save(out)
    if as_json:
        click.echo(json.dumps(book.to_json(), indent=1))
    else:
        for line in book_lines(book):
            click.echo(line)
    if out is not None:
        click.echo(f"wrote {out}: {units.count_noun(len(book.entries), 'problem')}", err=True)
