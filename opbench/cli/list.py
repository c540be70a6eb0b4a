"""List operators, variants and suites, for `opbench list`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from opbench.cli import completion
from opbench.cli.options import BACKENDS, cases_option, json_option, variants_option
from opbench.errors import UsageError, unknown_name
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import print_config
from opbench.paths import shipped_suites
from opbench.units import wrap_last_column

Listed = Mapping[str, str | Sequence[str]]
"""One listed item: its fields by name, including "name"."""


@click.command("list")
@click.argument(
    "what",
    metavar=f"[{'|'.join(completion.LISTS)}|OPERATOR]",
    default=completion.LISTS[0],
    shell_complete=completion.lists,
)
@click.argument("name", required=False, shell_complete=completion.listed)
@variants_option
@click.option(
    "--backend",
    type=BACKENDS,
    default="auto",
    show_default=True,
    help="For cases: use the problem sizes of this backend.",
)
@cases_option
@click.option(
    "--gpu",
    default="",
    metavar="NAME",
    shell_complete=completion.gpus,
    help="Select variants that this GPU can run: a name such as rtx3080, or a compute capability such as 6.1.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="For operators: also list those that opbench uses itself, in training steps and as probes of GPU peaks.",
)
@json_option
def list_command(
    what: str,
    name: str | None,
    roots: tuple[Path, ...],
    backend: str,
    cases: tuple[str, ...],
    gpu: str,
    show_all: bool,
    as_json: bool,
) -> None:
    """List operators, variants, suites, or cases; with the name of an operator, its variants.

    NAME is an operator for variants [default: all operators], a suite for cases [default: quick].
    """
    catalog = Catalog(roots)
    operators = catalog.operator_names()
    if what in operators and name is None:
        what, name = "variants", what
    if what not in completion.LISTS:
        names = (*completion.LISTS, *operators)
        raise UsageError(unknown_name("operator", what, names, catalog.command("list operators")))
    if name and what in ("operators", "suites"):
        raise click.UsageError(f"opbench list {what} takes no name; remove '{name}'")
    if gpu and what != "variants":
        raise click.UsageError(f"--gpu selects variants, and opbench list {what} lists none; remove --gpu")
    rows = LISTERS[what](catalog, name, roots, backend, cases)
    if gpu:
        rows = runnable(rows, gpu)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    shown = [row for row in rows if show_all or not row.get("role")]
    terminal_width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    width = max((len(row["name"]) for row in shown), default=0)
    for row in shown:
        needs = f" (needs {row['compute_capability']})" if row.get("compute_capability") else ""
        title = wrap_last_column(f"{row.get('title', '')}{needs}", width + 2, terminal_width)
        click.echo(f"{row['name']:{width}}  {title}".rstrip())
    if hidden := len(rows) - len(shown):
        click.echo(f"{hidden} operators that opbench uses itself are hidden; list them: opbench list --all", err=True)


def runnable(rows: Sequence[Listed], gpu: str) -> Sequence[Listed]:
    """Return the listed variants that a GPU's compute capability allows."""
    from opbench.gpu.limits.capability import capability_of
    from opbench.kernels.capability import missing_capability

    capability = capability_of(gpu)
    return [row for row in rows if not missing_capability(capability, str(row["compute_capability"]))]


def _operators(catalog: Catalog, name: str | None, *_: object) -> Sequence[Listed]:
    """List the operators with title and role; a role marks operators that opbench uses itself."""
    names = catalog.operator_names()
    titles = {name: catalog.operator_title(name).removeprefix(f"{name}: ") for name in names}
    return [{"name": name, "title": titles[name], "role": catalog.operator_role(name)} for name in names]


def _variants(catalog: Catalog, name: str | None, *_: object) -> Sequence[Listed]:
    """List the variants of one operator or of all, with their keys."""
    rows = []
    for operator in [name] if name else catalog.operator_names():
        for v in catalog.variants(operator):
            rows.append(
                {
                    "name": v.id,
                    "title": v.title,
                    "builds_on": v.builds_on,
                    "precision": v.precision,
                    "compute_capability": v.compute_capability,
                    "configs": [print_config(c) for c in v.configs],
                    "file": str(v.path),
                }
            )
    return rows


def _suites(*_: object) -> Sequence[Listed]:
    """List the shipped suites with their titles."""
    import tomllib

    return [{"name": f"suites/{p.name}", "title": tomllib.loads(p.read_text())["title"]} for p in shipped_suites()]


def _cases(
    catalog: Catalog, name: str | None, roots: tuple[Path, ...], backend: str, cases: tuple[str, ...]
) -> Sequence[Listed]:
    """List the names of the cases of a suite."""
    from opbench.api import expand_target

    suite, _, _ = expand_target(name or "quick", backend, cases, roots)
    return [{"name": case.name} for case in suite.cases]


LISTERS: dict[str, Callable[..., Sequence[Listed]]] = {
    "operators": _operators,
    "variants": _variants,
    "suites": _suites,
    "cases": _cases,
}
