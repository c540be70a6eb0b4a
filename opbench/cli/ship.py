"""Write kernels as a C library, for `opbench ship`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.cli.dataclass_options import add_options
from opbench.cli.net import chosen_sizes, picture_inputs, sizes_options
from opbench.errors import UsageError
from opbench.shipping.options import ShipOptions

if TYPE_CHECKING:
    from opbench.networks.plan.options import NetOptions
    from opbench.shipping.shipping import ShipResult


@click.command("ship")
@click.argument("names", nargs=-1, required=True, metavar="OPERATORS|PROBLEMS|CASES|NETWORKS...")
@sizes_options
@add_options(ShipOptions)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder to write; on an error, nothing is written.",
)
def ship_command(names: tuple[str, ...], options: ShipOptions, out: Path, **sizes: int | None) -> None:
    """Write the chosen kernels, or a network, as C++ sources that need no Python.

    For an operator, ship the winners of --book, with dispatch by problem. For a case, ship its variant. For a problem
    such as 'conv2d(n=1,c=64,h=56,w=56,k=64,r=3,s=3)', ship the winner of --book, else the fastest in the runs that come
    with opbench, else the variant predicted to be fastest; a note names the source. The result is one header, one
    source file, and a test program that checks the build against the float64 reference.

    For a network, the result is one program that launches the kernels of its layers, with the weights in a file.
    Both come with a Makefile, a CMakeLists.txt and a cubin.
    """
    from opbench.networks.ship.shipping_network import is_network, ship_network

    options = replace(options, names=names, out=out, command=shlex.join(["opbench", *sys.argv[1:]]))
    if networks := [name for name in names if is_network(name)]:
        if len(names) > 1:
            raise UsageError(
                f"'{networks[0]}' is a network and becomes a separate program; ship the network in a separate "
                f"command: opbench ship {networks[0]}",
                kind="exclusive",
                subject=networks[0],
            )
        if options.name != ShipOptions.name:
            raise UsageError(
                f"--name {options.name} applies to a library; the files of a network have the network's name, so "
                "remove --name",
                kind="exclusive",
                subject="--name",
                value=options.name,
            )
        if options.book is not None:
            raise UsageError(
                "--book applies to operators; for a network, replace --book by --plan plan.json",
                kind="exclusive",
                subject="--book",
                allowed="--plan",
            )
        network = network_options_of(networks[0], chosen_sizes(networks[0], sizes), options)
        print_shipped(
            ship_network(
                network, gpu=options.gpu, test=options.test, replace=options.replace, on_progress=print_progress
            ),
            out,
        )
        return
    network_values = {**sizes, "plan": options.plan, "weights": options.weights, "image": options.image}
    if network_options := [key for key, value in network_values.items() if value]:
        raise UsageError(
            f"--{network_options[0]} applies to networks, and {', '.join(names)} is not a network; list the networks "
            "with: opbench net list",
            kind="not-a-network",
            subject=f"--{network_options[0]}",
            value=tuple(names),
        )
    from opbench.shipping.shipping import ship_library

    print_shipped(ship_library(options, print_progress), out)


def network_options_of(network: str, sizes: Mapping[str, int], options: ShipOptions) -> NetOptions:
    """Return the options of a network, as `opbench net run` would have them."""
    from opbench.networks.plan.options import NetOptions

    return NetOptions(
        network=network,
        sizes=sizes,
        backend="cpu",
        precision=options.precision,
        plan=options.plan,
        variants=options.variants,
        weights=options.weights,
        **(picture_inputs(network, sizes, options.image) if options.image else {}),
        out=options.out,
        command=(shlex.join(sys.argv[1:]),),
    )


def print_progress(text: str) -> None:
    """Print progress on stderr."""
    click.echo(text, err=True)


def print_shipped(shipped: ShipResult, out: Path) -> None:
    """Print what was written, and the command that builds and tests it."""
    for note in shipped.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{shipped.summary}; build it and prove it: make -C {shlex.quote(str(out))} test", err=True)
