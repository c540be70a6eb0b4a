"""Shell completion of values: operators, variants, suites, networks, passes, GPUs."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from opbench.errors import OpbenchError
from opbench.kernels.folders import Catalog
from opbench.paths import shipped_suites

Completions = list[CompletionItem]

LISTS = ("operators", "variants", "suites", "cases")
"""The kinds of things that `opbench list` prints."""


def completions_for(incomplete: str, names: Iterable[str], files: bool = False) -> Completions:
    """Return completions for the names that begin with the typed text; without any and with `files`, file names."""
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return items or ([CompletionItem(incomplete, type="file")] if files else [])


def operators(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete operators, including those in the folders of --variants."""
    return completions_for(incomplete, _catalog(context).operator_names())


def variants(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete operators and, after a slash, the variants of one; otherwise files."""
    catalog, operator = _catalog(context), incomplete.partition("/")[0]
    names = catalog.operator_names()
    if "/" in incomplete and operator in names:
        try:
            names = [variant.id for variant in catalog.variants(operator)]
        except OpbenchError:  # The command reports an error in a header; completion ignores it.
            names = []
    return completions_for(incomplete, names, files=True)


def suites(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete shipped suites and operators; otherwise files."""
    return completions_for(incomplete, [*_suites(), *_catalog(context).operator_names()], files=True)


def lists(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete the first argument of `opbench list`: what to list, or an operator."""
    return completions_for(incomplete, (*LISTS, *_catalog(context).operator_names()))


def listed(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete the second argument of `opbench list`: an operator or, after "cases", a suite."""
    names = {"variants": _catalog(context).operator_names, "cases": _suites}.get(context.params.get("what", ""))
    return completions_for(incomplete, names() if names else [])


def networks(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete shipped networks; otherwise files."""
    from opbench.graph.zoo import NETWORKS

    return completions_for(incomplete, NETWORKS, files=True)


def passes(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete passes over a network's graph."""
    from opbench.graph.passes import PASSES
    from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS

    return completions_for(incomplete, (*PASSES, PREPARE_WEIGHTS))


def gpus(context: click.Context, parameter: click.Parameter, incomplete: str) -> Completions:
    """Complete GPUs with known peaks."""
    from opbench.gpu.limits.ceilings import known_gpus

    return completions_for(incomplete, known_gpus())


def _suites() -> list[str]:
    return sorted(path.stem for path in shipped_suites())


def _catalog(context: click.Context) -> Catalog:
    """Return the catalog with the --variants folders that are typed so far; without a folder that is invalid."""
    roots = context.params.get("variants") or context.params.get("roots") or ()
    try:
        return Catalog(roots)
    except OpbenchError:
        return Catalog()
