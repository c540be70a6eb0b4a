"""Advise how to make the kernels of a run faster, for `opbench advise`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import units
from opbench.cli.options import gpu_option, json_option, variants_option
from opbench.paths import path_from_here

if TYPE_CHECKING:
    from opbench.results.advice import CaseAdvice

MAX_ADVICE = 3
"""The most pieces of advice that the terminal shows for a case."""


@click.command("advise")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[VARIANT|FILE.cu|CASE]...")
@gpu_option
@variants_option
@json_option
def advise_command(run: Path, names: tuple[str, ...], gpu: str, roots: tuple[Path, ...], as_json: bool) -> None:
    """Say what limits the cases of a run, or the nodes of a network, what to change, and how much that gains.

    Each variant, file or case that is named is judged [default: of a run of your own files, these; of another run, for
    each problem the fastest variant that is no library]. Times and launches are those of the run; accesses are counted
    here, on the CPU, at a small problem. Of a run on the CPU every variant is judged, by its counts and a model of
    --gpu. How often such advice is right: docs/advice.md
    """
    from opbench.kernels.folders import Catalog
    from opbench.networks.records.network_run import read_case_run
    from opbench.running.advising import advise_run

    results = advise_run(run, names, Catalog(roots), gpu, read_case_run)
    if as_json:
        click.echo(json.dumps([advised.to_json() for advised in results], indent=1))
    else:
        near_bound = [advised for advised in results if advised.is_near_bound]
        paragraphs = [lines(advised) for advised in results if not advised.is_near_bound or not results[1:]]
        if near_bound and results[1:]:
            paragraphs.append(
                [
                    f"{len(near_bound)} of {len(results)} cases are within 10 % of their lower bound: little is "
                    "left to gain"
                ]
            )
        click.echo("\n\n".join(map("\n".join, paragraphs)))


def lines(advised: CaseAdvice) -> list[str]:
    """Return the lines on one case: its time and lower bound, then its advice or the reason why there is none."""
    headline = f"{advised.case}  {'at least ' if advised.modelled else ''}{units.time(advised.time_s)}"
    if advised.share_of_bound:
        headline += f", {units.ratio(1 / advised.share_of_bound)} its lower bound of {units.time(advised.bound_s)}"
        headline += " (modelled)" if advised.modelled else ""
    if advised.reason:
        return [headline, f"  {advised.reason}"]
    return [headline, *advice_lines(advised), *([f"  {advised.left_out}"] if advised.left_out else [])]


def advice_lines(advised: CaseAdvice) -> list[str]:
    """Return the lines on the strongest pieces of advice, as `advise` and `explain` print them."""
    printed_lines = []
    for number, advice in enumerate(advised.advice[:MAX_ADVICE], start=1):
        printed_lines.append(f"  {number}. {advice.binds}: {advice.action}")
        printed_lines.append(
            f"     {advice.evidence} ({advice.source})"
            + (f", {path_from_here(advice.file)}:{advice.line}" if advice.line else "")
        )
        examples = f"; see {', '.join(advice.examples[:2])}" if advice.examples else ""
        printed_lines.append(f"     {advised.gain_text(advice)}{examples}")
    return printed_lines
