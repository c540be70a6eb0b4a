"""Make operators from the task files of other benchmarks, for `opbench import`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.cli import CommandGroup
from opbench.cli.run import show_and_exit
from opbench.errors import EXIT_OK, EXIT_WRONG
from opbench.paths import next_command, write_file

if TYPE_CHECKING:
    from opbench.kernels.task_import import ImportedTask, OnTask

source_argument = click.argument("source", metavar="DIR", type=click.Path(path_type=Path))
out_option = click.option(
    "--out",
    default="tasks",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder for the operators, with one subfolder per operator; pass it to --variants.",
)


@click.group("import", cls=CommandGroup)
def import_command() -> None:
    """Make operators from the task files of other benchmarks, and .cu files of their kernels.

    Tasks need PyTorch. They are Python code, which opbench runs: import only tasks that you trust.
    """


@import_command.command("kernelbench")
@source_argument
@out_option
def kernelbench_command(source: Path, out: Path) -> None:
    """Make an operator from each KernelBench task in DIR.

    Exit codes: 0 all tasks were imported, 1 some were not.
    """
    from opbench.kernels.task_import import import_kernelbench

    _import_tasks(import_kernelbench, source, out)


@import_command.command("flashinfer")
@source_argument
@out_option
def flashinfer_command(source: Path, out: Path) -> None:
    """Make an operator from each FlashInfer-Bench definition in DIR.

    Exit codes: 0 all definitions were imported, 1 some were not.
    """
    from opbench.kernels.task_import import import_flashinfer

    _import_tasks(import_flashinfer, source, out)


@import_command.command("inline")
@click.argument("source", metavar="FILE.py", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.cu",
    help="The file to write [default: FILE.cu].",
)
def inline_command(source: Path, out: Path | None) -> None:
    """Write the CUDA source of a load_inline file as FILE.cu.

    FILE.py is read, not run.
    """
    from opbench.errors import UsageError
    from opbench.source.inline_source import read_inline_source

    text, path = read_inline_source(source), out or source.with_suffix(".cu")
    if path.exists():
        raise UsageError(f"{path}: exists already; choose another --out FILE.cu", kind="exists", subject=path)
    write_file(path, text.encode(), "choose another --out FILE.cu", parents=True)
    click.echo(f"wrote {path}")
    click.echo(f"next: {next_command('judge', path, task='TASK.py')}")


def _import_tasks(import_function: Callable[[Path, Path, OnTask], list[ImportedTask]], source: Path, out: Path) -> None:
    """Import all tasks of a folder, print what was imported, and exit with 1 if a task was not."""
    tasks = import_function(source, out, _print_task)
    imported = [task for task in tasks if not task.reason]
    click.echo(f"{len(imported)} of {len(tasks)} imported into {out}")
    if imported:
        click.echo(
            f"next: write {out / imported[0].operator}/NAME.cu, then: "
            + next_command("check", imported[0].operator, variants=[out])
        )
    show_and_exit(EXIT_OK if len(imported) == len(tasks) else EXIT_WRONG, lambda: None)


def _print_task(task: ImportedTask) -> None:
    """Print the outcome of one imported task: its operator and example, or the reason of the failure."""
    click.echo(f"{task.operator}{task.example}" if not task.reason else f"not imported: {task.file}: {task.reason}")
