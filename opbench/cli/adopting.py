"""`opbench adopt`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from opbench.cli.options import variants_option


@click.command("adopt")
@click.argument("file", metavar="FILE.cu", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--operator", default="", metavar="NAME", help="What it computes [default: told by the kernel's or file's name]."
)
@click.option("--kernel", default="", metavar="NAME", help="Which of its kernels [default: the one launched first].")
@click.option("--write", is_flag=True, help="Put the header on top of FILE.cu in place of printing it.")
@variants_option
def adopt_command(file: Path, operator: str, kernel: str, write: bool, roots: tuple[Path, ...]) -> None:
    """Propose the header of FILE.cu, read from its kernels and from a launch <<<grid, block>>> in it.

    What is guessed, and what could not be read, is said beside it.
    """
    from opbench.catalog.adopting import propose
    from opbench.catalog.folders import Catalog
    from opbench.paths import write_atomically

    catalog = Catalog(roots)
    found = propose(file, {name: catalog.operator(name) for name in catalog.operator_names()}, operator, kernel)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if write:
        write_atomically(file, found.text.encode() + file.read_bytes())
        click.echo(f"wrote the header of {file}", err=True)
    else:
        click.echo(found.text, nl=False)
    click.echo(f"next: opbench check {shlex.quote(str(file))}", err=True)
