"""`opbench ship`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.cli.net import pictured, sizes_given, sizes_options
from opbench.cli.options import variants_option
from opbench.errors import UsageError

if TYPE_CHECKING:
    from opbench.networks.plan.options import NetOptions
    from opbench.shipping.shipping import Shipped


@click.command("ship")
@click.argument("names", nargs=-1, required=True, metavar="OPERATORS|PROBLEMS|CASES|NETWORKS...")
@click.option(
    "--book",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Which problems of an operator, and by which variants: opbench book writes it.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Of a network, every layer's variant: a run's plan.json [default: what should be fastest].",
)
@sizes_options
@click.option("--weights", default="", metavar="FILE|digits", help="Of a network: as opbench net run takes them.")
@click.option("--image", metavar="FILE|digits|photo", help="Of a network: its example input [default: random numbers].")
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
    help="The least precise arithmetic that is taken.",
)
@click.option(
    "--name",
    default="opbench",
    show_default=True,
    metavar="NAME",
    help="Of a library: files' stem and functions' prefix.",
)
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
    plan: Path | None,
    weights: str,
    image: str | None,
    gpu: str,
    precision: str,
    name: str,
    no_test: bool,
    replace: bool,
    out: Path,
    roots: tuple[Path, ...],
    **sizes: int | None,
) -> None:
    """Write the chosen kernels, or a network, as C++ without Python.

    Of operators the book's winners, dispatched by problem, of whole case names those. Of a problem such as
    'conv2d(n=1,c=64,h=56,w=56,k=64,r=3,s=3)' the book's winner, else the fastest of the runs that come with opbench,
    else what opbench ranks first; a note says which. They become one header, one source, and a test program that proves
    the build against the float64 reference. Of a network one program: its layers' kernels, called in order, with the
    weights in a file. With both come a Makefile, a CMakeLists.txt and a cubin.
    """
    from opbench.networks.ship.shipping_network import is_network, ship_network

    networks = [one for one in names if is_network(one)]
    if networks:
        if len(names) > 1:
            raise UsageError(f"'{networks[0]}' is a network, which is a program of its own; ship it alone")
        if name != "opbench":
            raise UsageError(f"--name {name}: is of a library; a network's files bear its own name")
        if book is not None:
            raise UsageError("--book is of operators; a network's variants are in a plan: --plan plan.json")
        options = network_options_of(networks[0], sizes, plan, weights, image, precision, roots, out)
        shipped = ship_network(options, gpu=gpu, test=not no_test, replace=replace, tell=tell)
        finish(shipped, out)
        return
    given = [key for key, value in {**sizes, "plan": plan, "weights": weights, "image": image}.items() if value]
    if given:
        raise UsageError(f"--{given[0]} is of a network; {', '.join(names)} is none: opbench net list")
    from opbench.shipping.shipping import ShipOptions, ship_library

    library = ShipOptions(
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
    finish(ship_library(library, tell), out)


def network_options_of(
    network: str,
    sizes: Mapping[str, int | None],
    plan: Path | None,
    weights: str,
    image: str | None,
    precision: str,
    roots: tuple[Path, ...],
    out: Path,
) -> NetOptions:
    """What a network is made of, as `opbench net run` would."""
    from opbench.networks.plan.options import NetOptions

    given = sizes_given(network, sizes)
    return NetOptions(
        network=network,
        sizes=given,
        backend="cpu",
        precision=precision,
        plan=plan,
        variants=roots,
        weights=weights,
        **(pictured(network, given, image) if image else {}),
        out=out,
        command=(shlex.join(sys.argv[1:]),),
    )


def tell(words: str) -> None:
    """How far it is, on stderr."""
    click.echo(words, err=True)


def finish(shipped: Shipped, out: Path) -> None:
    """Say what was written and what to do with it."""
    for note in shipped.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{shipped.summary}; build it and prove it: make -C {shlex.quote(str(out))} test", err=True)
