"""Options that several commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from opbench.cli import completion
from opbench.options import VARIANTS_HELP


class WholeNumber(click.IntRange):
    """A whole number, with a minimum or without."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with _naming_what_is_allowed("a whole number", self, value):
            return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number, with a minimum or without."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with _naming_what_is_allowed("a number", self, value):
            return super().convert(value, param, ctx)


@contextlib.contextmanager
def _naming_what_is_allowed(kind: str, limits: click.IntRange | click.FloatRange, value: object) -> Iterator[None]:
    """Replace the message of an error of click by one with the value seen and what is allowed."""
    try:
        yield
    except click.BadParameter as error:
        limit = f" {'above' if limits.min_open else 'of at least'} {limits.min:g}" if limits.min is not None else ""
        raise click.BadParameter(f"{value} is not allowed; give {kind}{limit}", error.ctx, error.param) from None


BACKENDS = click.Choice(["auto", "cuda", "cpu"])

variants_option = click.option(
    "--variants",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=VARIANTS_HELP,
)
cases_option = click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="GLOB",
    help="Select cases by name or glob pattern; repeatable.",
    shell_complete=completion.variants,
)
case_option = click.option(
    "--case",
    "pattern",
    default="",
    metavar="CASE|PROBLEM|GLOB",
    help="Select the case of a FILE.cu, such as '(n=1000)' [default: one that suits the operator].",
    shell_complete=completion.variants,
)
gpu_option = click.option(
    "--gpu",
    default="h200",
    show_default=True,
    metavar="NAME",
    help="Without a GPU, predict lower bounds for this GPU model.",
    shell_complete=completion.gpus,
)
page_option = click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html", help="Also write an HTML page."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
size_option = click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="NAME=NUMBER",
    help="In memory mode, set the value of a host variable or the element count of a pointer; repeatable.",
)


def read_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return the values of `--size NAME=NUMBER` options by name; raise UsageError for invalid text."""
    result = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name.isidentifier() or not number.isdigit() or int(number) < 1:
            raise click.UsageError(
                f"--size {text} is not allowed; give a name and a whole number of at least 1, such as --size n=4096"
            )
        result[name] = int(number)
    return result
