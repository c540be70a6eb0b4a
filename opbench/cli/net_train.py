"""Train a network, for `opbench net train`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import paths, units
from opbench.checking import backends
from opbench.cli.dataclass_options import add_options
from opbench.cli.net import chosen_sizes, net_command, sizes_options
from opbench.cli.options import json_option
from opbench.cli.progress import plain_progress
from opbench.cli.run import show_and_exit
from opbench.networks.train.train_options import TrainOptions
from opbench.paths import next_command

if TYPE_CHECKING:
    from opbench.networks.records.training import TrainingRecord
    from opbench.networks.train.train_options import TrainingProgress
    from opbench.running.runner import OnProgress

DEFAULT_BATCH = 32


@net_command.command("train")
@sizes_options
@click.option(
    "--data",
    required=True,
    metavar="NAME|FILE|FOLDER",
    help="Training data: digits, digits+2 (shifted by up to two pixels), digits:224 (enlarged to "
    "224 pixels) or textures; text (the sources of Python's library, one token per byte); a .npz file with the "
    "arrays images and targets; a .txt file, whose bytes are tokens; or a folder with one subfolder of pictures per "
    "class.",
)
@click.option(
    "--weights", default="", metavar="FILE|DIR|digits", help="Start from these weights instead of random ones."
)
@add_options(TrainOptions, without=("libraries", "time_limit_s"))
@json_option
@click.argument("network", metavar="NAME|FILE.json")
def train_command(
    network: str, data: str, weights: str, options: TrainOptions, as_json: bool, **sizes: int | None
) -> None:
    """Train a network; the result is bit-identical every time.

    The command writes losses.jsonl, checkpoint.safetensors, train.json and the page train.html.

    \b
    Exit codes: 0 trained · 1 the loss is not finite, a process died, or the
    first step differs from PyTorch's · 2 usage · 3 environment.
    """
    from opbench.networks import api
    from opbench.networks.plan.options import NetOptions
    from opbench.networks.plan.running import make_graph
    from opbench.networks.report.training import PAGE

    network_sizes = chosen_sizes(network, sizes)
    if "batch" in network_sizes and sizes.get("batch") is None:
        network_sizes["batch"] = DEFAULT_BATCH
    folder = options.out or paths.new_run_folder(
        f"{Path(network).stem}-training-{backends.resolve_name(options.backend)}"
    )
    graph = make_graph(NetOptions(network, network_sizes, weights=weights, variants=options.variants), training=True)
    options = replace(options, out=folder, command=tuple(sys.argv[1:]))
    with messages_on_stderr() as (on_step, progress):
        record = api.train(graph, data, options, tell=on_step, progress=progress)
    for line in record.notes:
        click.echo(f"note: {line}", err=True)
    click.echo(f"report: {folder / PAGE}", err=True)
    code = 0 if record.comparison is None or record.comparison.first_step.right else 1
    if as_json:
        show_and_exit(code, lambda: click.echo(json.dumps(record.to_json())))
    else:
        show_and_exit(code, lambda: click.echo(summary(record, folder)))


def summary(record: TrainingRecord, out: Path) -> str:
    """Return the result of a training, and the command that uses it."""
    from opbench.networks.report.training import headline

    return "\n".join([*headline(record), f"use it: {next_command('net run', record.network, weights=out)}"])


def score_text(name: str, score: float) -> str:
    """Format a score: accuracy in per cent, IoU with three decimals, a loss with four digits."""
    return f"{100 * score:.1f} %" if name == "accuracy" else f"{score:.3f}" if name == "IoU" else f"{score:.4g}"


def progress_line(progress: TrainingProgress) -> str:
    """Return one line on the progress: epoch, step, loss, score, speed and remaining time."""
    test_text = (
        "" if progress.score is None else f" · {progress.score_name} {score_text(progress.score_name, progress.score)}"
    )
    averaged_text = f" over {progress.averaged_steps} steps" if progress.averaged_steps > 1 else ""
    time_left = f" · {units.duration(progress.left_s)} left" if progress.left_s >= 1 else ""
    return (
        f"epoch {progress.epoch:.1f} · step {progress.step}/{progress.steps} · "
        f"mean loss {progress.loss:.4f}{averaged_text}{test_text} · {progress.images_per_s:,.0f} "
        f"{progress.unit}/s{time_left}"
    )


@contextmanager
def messages_on_stderr() -> Iterator[tuple[Callable[[TrainingProgress], None], OnProgress]]:
    """Show the progress of a training and its tuning: one updated line on a terminal, else a line for each tenth."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status("the step is compiled", console=Console(stderr=True)) as status:
            yield (
                lambda progress: status.update(progress_line(progress)),
                lambda tuning_progress: status.update(
                    f"{tuning_progress.phase} {tuning_progress.case} ({tuning_progress.done} of "
                    f"{tuning_progress.total})"
                ),
            )
        return
    shown_tenth = -1

    def print_progress(progress: TrainingProgress) -> None:
        nonlocal shown_tenth
        tenth = 10 * progress.step // progress.steps
        if tenth > shown_tenth:
            shown_tenth = tenth
            click.echo(progress_line(progress), err=True)

    yield print_progress, plain_progress()
