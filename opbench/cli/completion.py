"""What a shell's tab key offers as values: operators, variants, suites, networks, passes, GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from opbench.errors import OpbenchError
from opbench.kernels.folders import Catalog
from opbench.paths import shipped

Completions = list[CompletionItem]


def starting(incomplete: str, names: Iterable[str], files: bool = False) -> Completions:
    """The names that begin so; where none does and a file may stand there, files."""
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or ([CompletionItem(incomplete, type="file")] if files else [])


def operators(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Operators, those of the folders of --variants among them."""
    return starting(incomplete, _catalog(context).operator_names())


def variants(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Operators, and behind a slash the variants of one; else a file."""
    catalog, operator = _catalog(context), incomplete.partition("/")[0]
    names = catalog.operator_names()
    if "/" in incomplete and operator in names:
        try:
            names = [variant.id for variant in catalog.variants(operator)]
        except OpbenchError:  # a header with an error is told by the command itself
            names = []
    return starting(incomplete, names, files=True)


def suites(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Shipped suites and operators; else a file."""
    return starting(incomplete, [*_suites(), *_catalog(context).operator_names()], files=True)


def listed(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """What the second word of `opbench list` may be: it depends on the first."""
    names = {"variants": _catalog(context).operator_names, "cases": _suites}.get(context.params.get("what", ""))
    return starting(incomplete, names() if names else [])


def networks(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Shipped networks; else a file."""
    from opbench.graph.zoo import NETWORKS

    return starting(incomplete, NETWORKS, files=True)


def passes(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Passes over a network's graph."""
    from opbench.graph.passes import PASSES
    from opbench.networks.plan.preparing import PREPARE

    return starting(incomplete, (*PASSES, PREPARE))


def gpus(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """GPUs whose ceilings are known."""
    from opbench.gpu.limits.ceilings import known_gpus

    return starting(incomplete, known_gpus())


def _suites() -> list[str]:
    return sorted(path.stem for path in shipped("suites").glob("*.toml"))


def _catalog(context: click.Context) -> Catalog:
    """With the folders of --variants that stand before the cursor; one that is wrong is told by the command itself."""
    given = context.params.get("variants") or context.params.get("roots") or ()
    try:
        return Catalog([Path(root).resolve() for root in given])
    except OpbenchError:
        return Catalog()
