"""`opbench net list`, `net show` and `net run`."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from opbench import paths
from opbench.cli import completion
from opbench.cli.describe import described, print_described
from opbench.cli.options import BACKENDS, compare_limit_option, gpu_option, json_option, variants_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import leave, stdout_console
from opbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from opbench.kernels.tensors import Arrays
    from opbench.networks.plan.options import NetOptions

SIZES = {
    "batch": "Images at once.",
    "size": "Height and width of an image.",
    "base": "Channels of the first level.",
    "levels": "How often the image is halved.",
    "channels": "Channels of an image.",
    "classes": "Channels of the result.",
}
"""What a network's sizes are called; each network has some of them."""


@click.group("net")
def net_command() -> None:
    """Networks from the best variants: list, show, run and train them."""


def sizes_options(function: Callable[..., object]) -> Callable[..., object]:
    """A network's sizes, each an option."""
    for name, help_text in reversed(SIZES.items()):
        function = click.option(f"--{name}", type=click.IntRange(min=1), metavar="N", help=help_text)(function)
    return function


def network_options(function: Callable[..., object]) -> Callable[..., object]:
    """The network and what decides its nodes."""
    for option in (
        json_option,
        variants_option,
        click.option(
            "--without",
            multiple=True,
            metavar="PASS",
            help="Leave out a pass over the graph, such as fuse_relu.",
            shell_complete=completion.passes,
        ),
        click.option(
            "--layout",
            type=click.Choice(["auto", "nchw", "nhwc"]),
            default="auto",
            show_default=True,
            help="Of images; auto is what costs least by the results given, without them nhwc on a GPU.",
        ),
        click.option(
            "--precision",
            type=click.Choice(["f32", "tf32", "bf16"]),
            default="f32",
            show_default=True,
            help="The least precise arithmetic allowed; with bf16 all values are stored so, too.",
        ),
        sizes_options,
        click.argument("network", metavar="NAME|FILE.json", shell_complete=completion.networks),
    ):
        function = option(function)
    return function


def choosing_options(function: Callable[..., object]) -> Callable[..., object]:
    """What decides each node's variant, how they are launched, and the memory that all may take."""
    for option in (
        click.option(
            "--memory",
            "memory_bytes",
            callback=lambda context, parameter, value: bytes_of(value),
            metavar="SIZE",
            help="The most that activations and workspaces may take, such as 900MB: slower variants where needed.",
        ),
        click.option("--parallel", is_flag=True, help="Run independent branches on streams of their own."),
        click.option("--no-graph", is_flag=True, help="Launch the nodes one by one, not as one CUDA graph."),
        click.option(
            "--leave-out",
            multiple=True,
            metavar="GLOB",
            help="Variants that --tune does not measure, such as 'conv2d/naive*'; repeatable.",
        ),
        click.option(
            "--tune", is_flag=True, help="Measure on the spot what could serve the nodes, and choose from that."
        ),
        click.option(
            "--results",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Choose each node's variant from the results of this run; repeatable.",
        ),
        click.option(
            "--plan",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Take every node's variant from this plan, as a run writes one (plan.json); it may be edited.",
        ),
    ):
        function = option(function)
    return function


@net_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the networks that opbench ships, with their sizes."""
    from opbench.graph.zoo import NETWORKS

    rows = [(name, str(inspect.getdoc(make)).partition("\n")[0], sizes_of(name)) for name, make in NETWORKS.items()]
    if as_json:
        click.echo(json.dumps([dict(zip(("name", "title", "sizes"), row, strict=True)) for row in rows], indent=1))
        return
    for name, title, known in rows:
        sizes = " ".join(f"--{key} {value}" for key, value in known.items())
        click.echo(f"{name:8}  {title}\n{'':8}  {sizes}")


@net_command.command("show")
@network_options
def show_command(
    network: str,
    precision: str,
    layout: str,
    without: tuple[str, ...],
    roots: tuple[Path, ...],
    as_json: bool,
    **sizes: int | None,
) -> None:
    """Show what is in a network after the passes.

    Of each node its problem, the shape of its result, weights, FLOPs and bytes.
    """
    from opbench.networks.plan.choosing import laid_out, rewritten
    from opbench.networks.plan.options import NetOptions
    from opbench.networks.plan.running import make_graph

    further = tuple(root.resolve() for root in roots)
    options = NetOptions(
        network, sizes_given(network, sizes), precision=precision, layout=layout, without=without, roots=further
    )
    graph, passes = rewritten(make_graph(options), options)
    graph, layouts = laid_out(graph, options, {})
    told = described(graph, [*passes, layouts])
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        leave(0, lambda: print_described(told))


@net_command.command("run")
@network_options
@click.option("--backend", type=BACKENDS, default="auto", show_default=True, help="Where it runs.")
@choosing_options
@click.option("--libraries", is_flag=True, help="Let nodes be served by variants that call a library, too.")
@click.option(
    "--compare",
    multiple=True,
    type=click.Choice(["torch"]),
    help="Time PyTorch in the same run on the same clocks: eager and torch.compile, each in nchw and channels_last, "
    "each captured as one CUDA graph and called from Python.",
)
@compare_limit_option
@click.option(
    "--image",
    metavar="FILE|digits|photo",
    help="Real input: a picture or .npy file, handwritten digits, or photographs [default: seeded random numbers].",
)
@click.option(
    "--weights",
    default="",
    metavar="FILE|digits",
    help="A .safetensors file, or LeNet's own, trained on digits [default: drawn from a seed as PyTorch does].",
)
@gpu_option
@click.option("--no-check", is_flag=True, help="Do not check nodes and outputs against the float64 reference.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop the check of a node that takes longer.",
)
@click.option("--seed", default=20260, show_default=True, type=click.IntRange(min=0), help="Seed of the inputs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The run's folder [default: reports/<time>-<network>-<backend>].",
)
def run_command(
    network: str,
    precision: str,
    layout: str,
    without: tuple[str, ...],
    as_json: bool,
    backend: str,
    plan: Path | None,
    roots: tuple[Path, ...],
    results: tuple[Path, ...],
    tune: bool,
    leave_out: tuple[str, ...],
    libraries: bool,
    no_graph: bool,
    parallel: bool,
    memory_bytes: int | None,
    compare: tuple[str, ...],
    compare_limit_s: float,
    image: str | None,
    weights: str,
    gpu: str,
    no_check: bool,
    time_limit_s: float,
    seed: int,
    out: Path | None,
    **sizes: int | None,
) -> None:
    """Run a network: every node checked and timed, and the whole.

    It writes network.json, plan.json and the page network.html.

    \b
    Exit codes: 0 all right · 1 a node or an output is wrong, or a node fails ·
    2 usage · 3 environment.
    """
    from opbench.checking import backends
    from opbench.networks.plan.options import NetOptions

    options = NetOptions(
        network=network,
        sizes=sizes_given(network, sizes),
        backend=backend,
        precision=precision,
        layout=layout,
        plan=plan,
        roots=tuple(root.resolve() for root in roots),
        results=results,
        tune=tune,
        libraries=libraries,
        leave_out=leave_out,
        graph=not no_graph,
        parallel=parallel,
        memory_bytes=memory_bytes,
        without=without,
        compare=compare,
        compare_limit_s=compare_limit_s,
        gpu=gpu,
        check=not no_check,
        time_limit_s=time_limit_s,
        weights=weights,
        **(pictured(network, sizes_given(network, sizes), image) if image else Pictured()),
        out=out or paths.new_run(f"{Path(network).stem}-{backends.resolve(backend)}"),
        seed=seed,
        command=tuple(sys.argv[1:]),
    )
    finish(options, as_json)


def finish(options: NetOptions, as_json: bool) -> None:
    """Run, write the page, print, and leave with the exit code."""
    from opbench.networks.plan.running import run_network
    from opbench.networks.report.page import write_network
    from opbench.networks.report.terminal import print_network
    from opbench.networks.report.words import is_right

    with progress_on_stderr() as tell:
        record = run_network(options, tell)
    page = write_network(record, options.out)[0]
    click.echo(f"report: {page}", err=True)
    code = 0 if is_right(record) else 1
    if as_json:
        leave(code, lambda: click.echo(json.dumps(record)))
    else:
        leave(code, lambda: print_network(record, stdout_console()))


# Arguments --------------------------------------------------------------------------------------------------------


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def bytes_of(text: str | None) -> int | None:
    """A size in bytes of a text such as 900MB."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"--memory {text}: is no size; such as 900MB or 1.2GB, of 10**6 and 10**9 bytes")
    return round(float(match[1]) * UNITS[(match[2] or "B").upper()])


def sizes_of(name: str) -> dict[str, int]:
    """A shipped network's sizes with their defaults; raises UsageError for an unknown one."""
    from opbench.graph.zoo import NETWORKS

    if name not in NETWORKS:
        hint = _importing(name) or "opbench net list; a saved network is a .json file"
        raise UsageError(unknown("network", name, NETWORKS, hint))
    return {key: parameter.default for key, parameter in inspect.signature(NETWORKS[name]).parameters.items()}


def _importing(name: str) -> str:
    """How a model's file of another program becomes one that commands take; empty where the name is none."""
    saved = str(Path(name).with_suffix(".json"))
    reader = {".onnx": "from_onnx", ".pt2": "from_torch"}.get(Path(name).suffix)
    if reader:
        read = f"importing.{reader}({json.dumps(name)})"
        code = f"from opbench.graph import importing, saving; saving.save({read}, {json.dumps(saved)})"
        return f"import it once, then name {saved}: python -c {shlex.quote(code)}"
    if name.endswith((".pt", ".pth")):
        return f"a module is imported in Python: opbench.graph.importing.from_torch, then saving.save to {saved}"
    return ""


def sizes_given(network: str, sizes: Mapping[str, int | None]) -> dict[str, int]:
    """The sizes of this command line; raises UsageError for one that the network has not."""
    given = {key: value for key, value in sizes.items() if value is not None}
    if network.endswith(".json"):
        if given:
            raise UsageError(f"--{next(iter(given))}: a saved network has its sizes; save it with others instead")
        return {}
    known = sizes_of(network)
    for key in given:
        if key not in known:
            has = ", ".join(f"--{name} {value}" for name, value in known.items())
            raise UsageError(f"--{key}: {network} has no such size; it has {has}")
    return {**known, **given}


class Pictured(TypedDict, total=False):
    """Options of a run that pictures decide."""

    inputs: Arrays
    labels: tuple[int, ...]


def pictured(network: str, sizes: Mapping[str, int], image: str) -> Pictured:
    """Pictures for the one input of the network, and their classes where those are known."""
    from opbench.networks.plan.options import NetOptions
    from opbench.networks.plan.pictures import labels, pictures
    from opbench.networks.plan.running import make_graph

    graph = make_graph(NetOptions(network, sizes))
    if len(graph.inputs) != 1:
        raise UsageError(f"--image: {graph.name} has the inputs {', '.join(graph.inputs)}; one picture is not enough")
    shape = graph.values[graph.inputs[0]].image
    return {"inputs": {graph.inputs[0]: pictures(image, shape)}, "labels": labels(image, shape[0])}
