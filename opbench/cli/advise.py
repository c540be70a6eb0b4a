"""`opbench advise`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import units
from opbench.cli.options import json_option, variants_option
from opbench.paths import from_here

if TYPE_CHECKING:
    from opbench.insight.advice import Advice
    from opbench.running.advising import Advised

SHOWN = 3
"""Most pieces of advice for a case on the terminal."""


@click.command("advise")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[VARIANT|FILE.cu|CASE]...")
@variants_option
@json_option
def advise_command(run: Path, names: tuple[str, ...], roots: tuple[Path, ...], as_json: bool) -> None:
    """Say what limits the cases of a GPU run, what to change, and how much that gains.

    For each problem of RUN, the fastest variant of your own is judged [or each variant, file or case that is named].
    Times and launches are those of the run; accesses are counted here, on the CPU, at a small problem. How often such
    advice is right: docs/advice.md
    """
    from opbench.kernels.folders import Catalog
    from opbench.running.advising import advise_run

    found = advise_run(run, names, Catalog(roots))
    if as_json:
        click.echo(json.dumps([one.to_json() for one in found], indent=1))
    else:
        near = [one for one in found if one.near]
        several = [lines(one) for one in found if not one.near or not found[1:]]
        if near and found[1:]:
            several.append(
                [f"{len(near)} of {len(found)} cases are within 10 % of their lower bound: little is left to gain"]
            )
        click.echo("\n\n".join(map("\n".join, several)))


def lines(found: Advised) -> list[str]:
    """Return the lines on one case: its time and bound, then its advice."""
    first = f"{found.case}  {units.time(found.time_s)}"
    if found.bound_s:
        first += f", {units.percent(found.of_bound)} of the lower bound {units.time(found.bound_s)}"
    return [first, f"  {found.reason}"] if found.reason else [first, *_advice_lines(found.advice[:SHOWN])]


def _advice_lines(advice: Sequence[Advice]) -> list[str]:
    text = []
    for number, one in enumerate(advice, start=1):
        text.append(f"  {number}. {one.binds}: {one.action}")
        text.append(f"     {one.evidence} ({one.source}){_place(one)}")
        low, middle, high = one.gain
        gain = (
            f"     gain {units.ratio(middle)} ({units.ratio(low)} to {units.ratio(high)} in four of five ladder steps)"
        )
        text.append(gain + (f"; see {', '.join(one.examples[:2])}" if one.examples else ""))
    return text


def _place(one: Advice) -> str:
    return f", {from_here(one.file)}:{one.line}" if one.line else ""
