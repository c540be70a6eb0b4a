"""`opbench net list`, `net show` and `net run`."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from opbench import paths
from opbench.checking import backends
from opbench.cli import CommandGroup
from opbench.cli.dataclass_options import add_options
from opbench.cli.describe_network import describe, print_network_description
from opbench.cli.options import WholeNumber, json_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import show_and_exit, stdout_console
from opbench.errors import UsageError, unknown_name
from opbench.networks.plan.options import NetOptions

if TYPE_CHECKING:
    from opbench.kernels.tensors import Arrays

SIZE_OPTIONS = {
    "batch": "Images or sequences per batch.",
    "size": "Height and width of an image.",
    "base": "For unet, diffusion and the ResNets: channels of the first level.",
    "levels": "For unet: number of times that the image is halved.",
    "channels": "Channels of the input image.",
    "classes": "Number of classes, which are the channels of the result.",
    "tokens": "For gpt2: tokens of a sequence.",
    "layers": "For gpt2: number of layers.",
    "heads": "For gpt2: heads of each attention.",
    "width": "For gpt2: columns of the activations; for mobilenetv3: percent of its channels.",
    "vocabulary": "For gpt2: number of different tokens.",
}
"""The options for a network's sizes with their help; each network has some of them."""


@click.group("net", cls=CommandGroup)
def net_command() -> None:
    """Run or train a whole network with the fastest variants; list and show networks."""


def sizes_options(function: Callable[..., object]) -> Callable[..., object]:
    """Add an option for each of a network's sizes."""
    for name, help_text in reversed(SIZE_OPTIONS.items()):
        function = click.option(f"--{name}", type=WholeNumber(min=1), metavar="N", help=help_text)(function)
    return function


@net_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the networks that opbench ships, with their sizes."""
    from opbench.graph.zoo import NETWORKS

    rows = [
        (name, str(inspect.getdoc(build_graph)).partition("\n")[0], sizes_of(name))
        for name, build_graph in NETWORKS.items()
    ]
    if as_json:
        click.echo(json.dumps([dict(zip(("name", "title", "sizes"), row, strict=True)) for row in rows], indent=1))
        return
    for name, title, sizes in rows:
        size_options = " ".join(f"--{key} {value}" for key, value in sizes.items())
        click.echo(f"{name:8}  {title}\n{'':8}  {size_options}")


@net_command.command("show")
@sizes_options
@add_options(NetOptions, only=("network", "precision", "layout", "without", "variants"))
@json_option
def show_command(options: NetOptions, as_json: bool, **sizes: int | None) -> None:
    """Show the nodes of a network after the passes over its graph.

    For each node: its problem, the shape of its result, weights, FLOPs and bytes.
    """
    from opbench.networks.plan.choosing import apply_enabled_passes, convert_layouts, given_plan
    from opbench.networks.plan.running import make_graph

    options = replace(options, sizes=chosen_sizes(options.network, sizes))
    graph = make_graph(options)
    graph, passes = apply_enabled_passes(graph, options, given_plan(graph, options))
    graph, layouts = convert_layouts(graph, options, {})
    description = describe(graph, [*passes, layouts])
    if as_json:
        click.echo(json.dumps(description, indent=1))
    else:
        show_and_exit(0, lambda: print_network_description(description))


@net_command.command("run")
@sizes_options
@click.option(
    "--image",
    metavar="FILE|digits|photo",
    help="Input image: a picture or .npy file, handwritten digits, or photographs [default: random numbers].",
)
@add_options(NetOptions)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the results [default: reports/<time>-<network>-<backend>].",
)
@json_option
def run_command(options: NetOptions, image: str | None, out: Path | None, as_json: bool, **sizes: int | None) -> None:
    """Run a network: check and time every node and the whole network.

    The command writes network.json, plan.json and the page network.html.

    \b
    Exit codes: 0 success · 1 a node or an output is wrong, or a node fails ·
    2 usage · 3 environment.
    """
    network_sizes = chosen_sizes(options.network, sizes)
    options = replace(
        options,
        sizes=network_sizes,
        **(picture_inputs(options.network, network_sizes, image) if image else PictureInputs()),
        out=out or paths.new_run_folder(f"{Path(options.network).stem}-{backends.resolve_name(options.backend)}"),
        command=tuple(sys.argv[1:]),
    )
    run_and_exit(options, as_json)


def run_and_exit(options: NetOptions, as_json: bool) -> None:
    """Run the network, write the page, print the result, and exit with its code."""
    from opbench.networks.plan.running import run_network
    from opbench.networks.report.page import write_network
    from opbench.networks.report.phrases import is_right
    from opbench.networks.report.terminal import print_network

    with progress_on_stderr() as on_progress:
        record = run_network(options, on_progress)
    page = write_network(record, options.out)[0]
    click.echo(f"report: {page}", err=True)
    code = 0 if is_right(record) else 1
    if as_json:
        show_and_exit(code, lambda: click.echo(json.dumps(record.to_json())))
    else:
        show_and_exit(code, lambda: print_network(record, stdout_console(), paths.path_from_here(str(options.out))))


# Arguments --------------------------------------------------------------------------------------------------------


def sizes_of(name: str) -> dict[str, int]:
    """Return a shipped network's sizes with their defaults; raise UsageError for an unknown network."""
    from opbench.graph.zoo import NETWORKS

    if name not in NETWORKS:
        hint = _import_hint(name) or "opbench net list; a saved network is a .json file"
        raise UsageError(unknown_name("network", name, NETWORKS, hint))
    return {key: parameter.default for key, parameter in inspect.signature(NETWORKS[name]).parameters.items()}


def _import_hint(name: str) -> str:
    """Return how to import another program's model file so that commands accept it; "" for any other name."""
    json_file = str(Path(name).with_suffix(".json"))
    import_function = {".onnx": "from_onnx", ".pt2": "from_torch"}.get(Path(name).suffix)
    if import_function:
        import_call = f"importing.{import_function}({json.dumps(name)})"
        python_code = (
            f"from opbench.graph import importing, saving; saving.save({import_call}, {json.dumps(json_file)})"
        )
        return f"import it once, then name {json_file}: python -c {shlex.quote(python_code)}"
    if name.endswith((".pt", ".pth")):
        return f"a module is imported in Python: opbench.graph.importing.from_torch, then saving.save to {json_file}"
    return ""


def chosen_sizes(network: str, sizes: Mapping[str, int | None]) -> dict[str, int]:
    """Return the sizes of this command line with defaults; raise UsageError for a size that the network lacks."""
    given_sizes = {key: value for key, value in sizes.items() if value is not None}
    if network.endswith(".json"):
        if given_sizes:
            raise UsageError(
                f"--{next(iter(given_sizes))}: the sizes of a saved network are fixed; remove "
                f"--{next(iter(given_sizes))}, or save the network again with other sizes",
                kind="fixed-sizes",
                subject=next(iter(given_sizes)),
            )
        return {}
    default_sizes = sizes_of(network)
    for key in given_sizes:
        if key not in default_sizes:
            accepted_options = ", ".join(f"--{name} {value}" for name, value in default_sizes.items())
            raise UsageError(
                f"--{key}: {network} has no such size; use one of {accepted_options}",
                kind="unknown-name",
                subject="size",
                value=key,
                allowed=accepted_options,
            )
    return {**default_sizes, **given_sizes}


class PictureInputs(TypedDict, total=False):
    """Options of a network's run with real pictures."""

    inputs: Arrays
    labels: tuple[int, ...]


def picture_inputs(network: str, sizes: Mapping[str, int], image: str) -> PictureInputs:
    """Return pictures for the network's only input, and their classes if known."""
    from opbench.networks.plan.pictures import labels, pictures
    from opbench.networks.plan.running import make_graph

    graph = make_graph(NetOptions(network, sizes))
    if len(graph.inputs) != 1:
        raise UsageError(
            f"--image: {graph.name} has the inputs {', '.join(graph.inputs)}, and a picture can fill only one input; "
            "remove --image",
            kind="several-inputs",
            subject="--image",
        )
    shape = graph.values[graph.inputs[0]].image
    return {"inputs": {graph.inputs[0]: pictures(image, shape)}, "labels": labels(image, shape[0])}
