"""`opbench net train`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import paths, units
from opbench.cli.net import choosing_options, net_command, sizes_given, sizes_options
from opbench.cli.options import BACKENDS, compare_limit_option, json_option, variants_option
from opbench.cli.progress import plain_progress
from opbench.cli.run import leave
from opbench.errors import UsageError
from opbench.paths import next_command

if TYPE_CHECKING:
    from opbench.networks.records.training import TrainingRecord
    from opbench.networks.train.train_options import Standing
    from opbench.running.runner import Tell

BATCH = 32


@net_command.command("train")
@sizes_options
@click.option(
    "--data",
    required=True,
    metavar="NAME|FILE.npz|FOLDER",
    help="digits, digits+2 (shifted by up to two pixels), digits:224 (enlarged), textures; arrays images and targets; "
    "a subfolder of pictures a class.",
)
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Times over the data [default: 10].")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Steps, in place of epochs.")
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Micro-batches of --batch pictures before each update.",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="R",
    help="GPUs of this machine that train side by side, each --batch pictures a step; on cpu: processes.",
)
@click.option(
    "--bucket",
    "bucket_mb",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="MB",
    help="Gradients that GPUs exchange at once at least, while the backward pass goes on.",
)
@click.option("--loss", metavar="NAME", help="cross_entropy, binary_cross_entropy, l1, mse [default: by the data].")
@click.option("--optimizer", default="adam", show_default=True, metavar="NAME", help="adam, adamw or sgd.")
@click.option("--lr", "learning_rate", type=float, default=1e-3, show_default=True, help="Learning rate.")
@click.option("--schedule", default="cosine", show_default=True, metavar="NAME", help="constant or cosine.")
@click.option("--warmup", "warmup_steps", type=click.IntRange(min=0), default=0, metavar="STEPS", help="Linear rise.")
@click.option("--momentum", type=float, default=0.9, show_default=True, help="Of sgd.")
@click.option("--decay", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Weight decay.")
@click.option(
    "--clip",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NORM",
    help="Where all gradients together have a larger norm, scale them down to it.",
)
@click.option("--weights", default="", metavar="FILE|DIR|digits", help="Start from these in place of the seed's.")
@click.option(
    "--precision",
    type=click.Choice(["f32", "tf32", "bf16"]),
    default="f32",
    show_default=True,
    help="Least precise allowed; bf16 also stores images, activations and their gradients so.",
)
@choosing_options
@click.option(
    "--layout",
    type=click.Choice(["auto", "nchw", "nhwc"]),
    default="auto",
    show_default=True,
    help="Of images; auto is nhwc on a GPU, whose tensor cores read that, else nchw.",
)
@click.option("--without", multiple=True, metavar="PASS", help="Leave out a pass, such as fuse_relu_backward.")
@click.option("--check", is_flag=True, help="First check every node of the first step on its data.")
@click.option(
    "--compare",
    multiple=True,
    type=click.Choice(["torch"]),
    help="At the end compare PyTorch's first step with ours, and on a GPU the times of six of its ways of a step.",
)
@compare_limit_option
@click.option("--backend", type=BACKENDS, default="auto", show_default=True, help="Where it runs.")
@variants_option
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the data's order and dropout."
)
@click.option(
    "--evaluate-every",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Evaluate on the test set every so many steps [default: an epoch].",
)
@click.option(
    "--checkpoint-every",
    "checkpoint_every_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Keep what a resumed training needs.",
)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The training's folder.")
@json_option
@click.argument("network", metavar="NAME|FILE.json")
def train_command(
    network: str,
    data: str,
    epochs: int | None,
    steps: int | None,
    accumulate: int,
    gpus: int,
    bucket_mb: int,
    loss: str | None,
    optimizer: str,
    learning_rate: float,
    schedule: str,
    warmup_steps: int,
    momentum: float,
    decay: float,
    clip: float | None,
    weights: str,
    precision: str,
    plan: Path | None,
    results: tuple[Path, ...],
    tune: bool,
    leave_out: tuple[str, ...],
    no_graph: bool,
    parallel: bool,
    memory_bytes: int | None,
    layout: str,
    without: tuple[str, ...],
    check: bool,
    compare: tuple[str, ...],
    compare_limit_s: float,
    backend: str,
    roots: tuple[Path, ...],
    seed: int,
    evaluate_every: int | None,
    checkpoint_every_s: float,
    resume: bool,
    out: Path | None,
    as_json: bool,
    **sizes: int | None,
) -> None:
    """Train a network, to the same bits every time.

    It writes losses.jsonl, checkpoint.safetensors, train.json and the page train.html.

    \b
    Exit codes: 0 trained · 1 a loss that is no number, a rank that died,
    or a step that is not a peer's · 2 usage · 3 environment.
    """
    from opbench.checking import backends
    from opbench.networks import api
    from opbench.networks.plan.options import NetOptions
    from opbench.networks.plan.running import make_graph
    from opbench.networks.report.training import PAGE

    given = sizes_given(network, sizes)
    if "batch" in given and sizes.get("batch") is None:
        given["batch"] = BATCH
    roots = tuple(root.resolve() for root in roots)
    folder = out or paths.new_run(f"{Path(network).stem}-training-{backends.resolve(backend)}")
    if resume and out is None:
        raise UsageError("--resume goes on with the training in a folder; name it: --out DIR")
    with told_on_stderr() as (tell, progress):
        record = api.train(
            make_graph(NetOptions(network, given, weights=weights, roots=roots)),
            data,
            epochs=epochs or 0,
            steps=steps or 0,
            accumulate=accumulate,
            gpus=gpus,
            bucket_bytes=bucket_mb << 20,
            loss=loss or "",
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_steps=warmup_steps,
            momentum=momentum,
            decay=decay,
            clip=clip or 0.0,
            layout=layout,
            without=without,
            precision=precision,
            plan=plan,
            results=results,
            tune=tune,
            leave_out=leave_out,
            memory_bytes=memory_bytes,
            graph=not no_graph,
            parallel=parallel,
            check=check,
            compare=compare,
            compare_limit_s=compare_limit_s,
            backend=backend,
            variants=roots,
            seed=seed,
            evaluate_every=evaluate_every or 0,
            checkpoint_every_s=checkpoint_every_s,
            out=folder,
            resume=resume,
            command=sys.argv[1:],
            tell=tell,
            progress=progress,
        )
    for line in record["told"]:
        click.echo(f"note: {line}", err=True)
    click.echo(f"report: {folder / PAGE}", err=True)
    code = 0 if "comparison" not in record or record["comparison"]["first_step"]["right"] else 1
    if as_json:
        leave(code, lambda: click.echo(json.dumps(record)))
    else:
        leave(code, lambda: click.echo(summary(record, folder)))


def summary(record: TrainingRecord, out: Path) -> str:
    """What came of it, and what to do with it."""
    from opbench.networks.report.training import headline

    return "\n".join([*headline(record), f"use it: {next_command('net run', record['network'], weights=out)}"])


def told_score(name: str, score: float) -> str:
    """A share in per cent, an IoU as a number, a loss in its digits."""
    return f"{100 * score:.1f} %" if name == "accuracy" else f"{score:.3f}" if name == "IoU" else f"{score:.4g}"


def told(standing: Standing) -> str:
    """One line: how far, how well, how fast, how long still."""
    held = (
        "" if standing.score is None else f" · {standing.score_name} {told_score(standing.score_name, standing.score)}"
    )
    over = f" over {standing.averaged_steps} steps" if standing.averaged_steps > 1 else ""
    left = f" · {units.duration(standing.left_s)} left" if standing.left_s >= 1 else ""
    return (
        f"epoch {standing.epoch:.1f} · step {standing.step}/{standing.steps} · "
        f"mean loss {standing.loss:.4f}{over}{held} · {standing.images_per_s:,.0f} images/s{left}"
    )


@contextmanager
def told_on_stderr() -> Iterator[tuple[Callable[[Standing], None], Tell]]:
    """How far a training and a tuning before it are: one line that changes on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status("the step is compiled", console=Console(stderr=True)) as status:
            yield (
                lambda standing: status.update(told(standing)),
                lambda at: status.update(f"{at.phase} {at.case} ({at.done} of {at.total})"),
            )
        return
    shown = -1

    def tell(standing: Standing) -> None:
        nonlocal shown
        tenth = 10 * standing.step // standing.steps
        if tenth > shown:
            shown = tenth
            click.echo(told(standing), err=True)

    yield tell, plain_progress()
