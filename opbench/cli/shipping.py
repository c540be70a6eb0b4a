"""`opbench ship`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from opbench.cli.options import variants_option


@click.command("ship")
@click.argument("names", nargs=-1, required=True, metavar="OPERATORS|CASES...")
@click.option(
    "--book",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Which problems of an operator, and by which variants: opbench book writes it.",
)
@click.option(
    "--gpu",
    default="sm_90",
    show_default=True,
    metavar="ARCH|NAME",
    help="What it is compiled for: an architecture, or a GPU such as h200.",
)
@click.option(
    "--precision",
    type=click.Choice(["f32", "tf32", "bf16"]),
    default="f32",
    show_default=True,
    help="The least precise arithmetic that is taken from the book.",
)
@click.option("--name", default="opbench", show_default=True, metavar="NAME", help="Files' stem and functions' prefix.")
@click.option("--no-test", is_flag=True, help="Leave out the float64 reference, which takes long for large problems.")
@click.option("--replace", is_flag=True, help="Replace a folder that an earlier `ship` wrote.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder to write, whole or not at all.",
)
@variants_option
def ship_command(
    names: tuple[str, ...],
    book: Path | None,
    gpu: str,
    precision: str,
    name: str,
    no_test: bool,
    replace: bool,
    out: Path,
    roots: tuple[Path, ...],
) -> None:
    """Write the chosen kernels as C++ without Python: one header, one source.

    Of operators the book's winners, dispatched by problem; of whole case names those. With it come a C interface, a
    Makefile, a CMakeLists.txt, a cubin, and a test program that proves the build against the float64 reference.
    """
    from opbench.shipping.shipping import ShipOptions, ship_library

    options = ShipOptions(
        names=names,
        out=out,
        book=book,
        gpu=gpu,
        precision=precision,
        name=name,
        roots=tuple(root.resolve() for root in roots),
        test=not no_test,
        replace=replace,
        command=shlex.join(["opbench", *sys.argv[1:]]),
    )
    shipped = ship_library(options, lambda words: click.echo(words, err=True))
    for note in shipped.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{shipped.summary}; build it and prove it: make -C {shlex.quote(str(out))} test", err=True)
