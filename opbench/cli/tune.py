"""`opbench tune`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import paths
from opbench.cli import completion
from opbench.cli.options import case_option, gpu_option, json_option, variants_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import leave
from opbench.errors import EnvironmentFault, UsageError
from opbench.paths import next_command

if TYPE_CHECKING:
    from opbench.kernels.case import Case
    from opbench.results.files import Run
    from opbench.results.tuning import Tuning

LEAST_BUDGET_S = 5.0


def seconds(least_s: float) -> Callable[[click.Context, click.Parameter, str], float]:
    """Reads a time such as 60s, 90, 5min or 1h."""

    def read(context: click.Context, option: click.Parameter, text: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)?", text)
        value = float(found[1]) * {"min": 60, "h": 3600}.get(found[2], 1) if found else math.nan
        if not value >= least_s:
            raise click.BadParameter(f"{text!r} is not allowed; a time of {least_s:g}s or more: 60s, 5min, 1h")
        return value

    return read


@click.command("tune")
@click.argument("target", metavar="CASE|FILE.cu", shell_complete=completion.variants)
@click.option(
    "--budget",
    "budget_s",
    callback=seconds(LEAST_BUDGET_S),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Wall time for all of it, such as 60s, 5min or 1h.",
)
@click.option(
    "--space",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="tune and where of its own: ranges in place of the header's lists, rules beside its rules.",
)
@click.option(
    "--strategy",
    type=click.Choice(["local", "random", "bayesian"]),
    default="local",
    show_default=True,
    help="Neighbours of the best so far, any config, or what Optuna's model expects to be fast.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the strategy.")
@click.option(
    "--mode",
    type=click.Choice(["cold", "hot"]),
    help="Each sample with a flushed L2 cache, or with the case's data left in it [default: cold; with --energy hot].",
)
@click.option("--energy", is_flag=True, help="Rank by joules a launch, of launches without a break, not by time.")
@click.option(
    "--compile-limit",
    "compile_limit_s",
    callback=seconds(1.0),
    default="20s",
    show_default=True,
    metavar="TIME",
    help="A config that takes longer to compile is given up, and is told so.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The search's folder [default: reports/<time>-tune].",
)
@click.option("--resume", is_flag=True, help="Go on with the search in --out; configs that it tried are not repeated.")
@click.option(
    "--dry-run", is_flag=True, help="Say how many configs there are and which can never be launched; needs no GPU."
)
@gpu_option
@case_option
@variants_option
@json_option
def tune_command(
    target: str,
    budget_s: float,
    space: Path | None,
    strategy: str,
    seed: int,
    mode: str | None,
    energy: bool,
    compile_limit_s: float,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    gpu: str,
    pattern: str,
    roots: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Search the configs of a kernel for the fastest, and measure the best of them side by side.

    Tunables may have ranges of thousands of configs: tune = { BM = { from = 16, to = 128, step = 16 } } in the header,
    or in a --space file. Configs are compiled ahead of the GPU, those that cannot fit are never launched, wrong ones
    are left out, and a race drops whatever is slower than the leader beyond doubt.
    """
    from opbench.kernels.folders import Catalog
    from opbench.kernels.space_file import with_space
    from opbench.running.targets import case_of, is_file

    if resume and out is None:
        raise click.UsageError("--resume needs --out DIR, the folder of the search to go on with")
    if energy and mode == "cold":
        raise click.UsageError("--energy counts launches without a break, whose caches are hot; leave --mode cold out")
    mode = mode or ("hot" if energy else "cold")
    roots = tuple(root.resolve() for root in roots)
    case = case_of(target, pattern, Catalog(roots))
    variant = with_space(case.variant, space) if space else case.variant
    if variant.is_library or not variant.tune:
        raise UsageError(f"{variant.id} has nothing to tune: its header has no tune = {{ NAME = [1, 2] }}")
    if dry_run:
        _dry_run(type(case)(variant, case.config, case.problem), gpu, as_json)
        return
    from opbench.gpu import driver as cuda
    from opbench.tuning.tune import TuneOptions, tune

    if reason := cuda.why_missing():
        again = next_command("tune", target, variants=roots, case=pattern, space=space, dry_run=True)
        check = next_command("check", target if is_file(target) else variant.id, variants=roots)
        raise EnvironmentFault(
            f"{reason}; a search ranks by times, which the cpu backend has none of. What the space holds: {again}; "
            f"whether its kernels are right: {check}"
        )
    out = out or paths.new_run("tune")
    options = TuneOptions(
        out, budget_s, strategy, seed, mode, energy, compile_limit_s, resume, roots, tuple(sys.argv[1:])
    )
    with progress_on_stderr() as tell:
        found, run = tune(variant, case.problem, options, tell)
    from opbench.report.tuning import to_json
    from opbench.report.tuning_page import write_tuning

    click.echo(f"report: {write_tuning(found, run)}", err=True)
    code = 0 if run and any(r.status == "right" for r in run.results) else 1
    leave(code, lambda: click.echo(json.dumps(to_json(found, run), indent=1)) if as_json else _print(found, run))


def _dry_run(case: Case, gpu: str, as_json: bool) -> None:
    """What a search of the space would begin with."""
    from opbench.gpu.compile.fitting import too_large
    from opbench.gpu.limits.products import product
    from opbench.tuning.candidates import candidates

    known = product(gpu)
    if known is None:
        raise UsageError(f"--gpu {gpu} is not known (opbench ceiling --help names those that are)")
    space = candidates(case.variant, case.problem)
    made = (type(case)(case.variant, config, case.problem).launches(known.sm_count) for config in space)
    unfit = [reason for launches in made if (reason := too_large(launches, known.limits))]
    every = math.prod(len(values) for values in case.variant.tune.values())
    found = {
        "case": f"{case.variant.id}{case.problem}",
        "combinations": every,
        "allowed": len(space),
        "unfit": len(unfit),
        "gpu": known.name,
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for name, values in case.variant.tune.items():
        click.echo(f"{name:16} {len(values):5} values: {', '.join(map(str, values[:12]))}{', …' * (len(values) > 12)}")
    click.echo(f"{every} combinations, {len(space)} that the rules and {case.problem} allow")
    if unfit:
        click.echo(f"{len(unfit)} of them can never be launched on {known.name}, such as for {unfit[0]}")
    click.echo("registers are known once a config is compiled; times need a GPU")


def _print(found: Tuning, run: Run | None) -> None:
    """The finals, then what was tried, then what to do with it."""
    from opbench.report.tuning import lines

    for line in lines(found, run):
        click.echo(line)
