"""Search the fastest config of a variant, for `opbench tune`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import paths
from opbench.cli import completion
from opbench.cli.dataclass_options import add_options
from opbench.cli.options import case_option, gpu_option, json_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import show_and_exit
from opbench.errors import EnvironmentFault, UsageError
from opbench.paths import next_command
from opbench.tuning.options import TuneOptions

if TYPE_CHECKING:
    from opbench.kernels.case import Case
    from opbench.results.files import Run
    from opbench.results.tuning import Tuning


@click.command("tune")
@click.argument("target", metavar="CASE|FILE.cu", shell_complete=completion.variants)
@add_options(TuneOptions)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results [default: reports/<time>-tune].",
)
@click.option(
    "--dry-run", is_flag=True, help="Only count all configs and the configs that can never be launched. Needs no GPU."
)
@gpu_option
@case_option
@json_option
def tune_command(
    target: str, options: TuneOptions, out: Path | None, dry_run: bool, gpu: str, pattern: str, as_json: bool
) -> None:
    """Search for the fastest config of a kernel within a time budget, and measure the best ones precisely.

    The header or a --space file gives the search space, which may have thousands of configs:
    tune = { BM = { from = 16, to = 128, step = 16 } }. The search skips configs that do not fit on the GPU, excludes
    configs with wrong results, and drops a config as soon as it is clearly slower than the best one.
    """
    from opbench.kernels.folders import Catalog
    from opbench.kernels.space_file import with_search_space
    from opbench.running.targets import case_of, is_file

    if options.resume and out is None:
        raise click.UsageError("--resume needs --out DIR, the folder of the search to continue")
    case = case_of(target, pattern, Catalog(options.variants))
    variant = with_search_space(case.variant, options.space) if options.space else case.variant
    if variant.is_library or not variant.tune:
        raise UsageError(
            f"{variant.id} has no tunable parameters; add a key such as tune = {{ NAME = [1, 2] }} to its header",
            kind="nothing-tunable",
            subject=variant.id,
        )
    if dry_run:
        _dry_run(type(case)(variant, case.config, case.problem), gpu, as_json)
        return
    from opbench.gpu import driver as cuda
    from opbench.tuning.tune import tune

    if reason := cuda.why_missing():
        again = next_command("tune", target, variants=options.variants, case=pattern, space=options.space, dry_run=True)
        check = next_command("check", target if is_file(target) else variant.id, variants=options.variants)
        raise EnvironmentFault(
            f"{reason}; a search compares times, and the cpu backend measures no time. Only count the configs with: "
            f"{again}; check that the kernels are correct with: {check}",
            kind="needs-gpu",
        )
    options = replace(options, out=out or paths.new_run_folder("tune"), command=tuple(sys.argv[1:]))
    with progress_on_stderr() as on_progress:
        tuning, run = tune(variant, case.problem, options, on_progress)
    from opbench.report.tuning import to_json
    from opbench.report.tuning_page import write_tuning

    click.echo(f"report: {write_tuning(tuning, run)}", err=True)
    code = 0 if run and any(r.status == "right" for r in run.results) else 1
    show_and_exit(
        code, lambda: click.echo(json.dumps(to_json(tuning, run), indent=1)) if as_json else _print(tuning, run)
    )


def _dry_run(case: Case, gpu: str, as_json: bool) -> None:
    """Print the size of the search space and how many of its configs cannot be launched."""
    from opbench.gpu.compile.fitting import why_block_is_too_large
    from opbench.gpu.limits.ceilings import known_gpus
    from opbench.gpu.limits.products import product
    from opbench.tuning.candidates import candidates

    gpu_product = product(gpu)
    if gpu_product is None:
        raise UsageError(
            f"--gpu {gpu} is not known; use one of: {', '.join(known_gpus())}",
            kind="unknown-name",
            subject="--gpu",
            value=gpu,
            allowed=tuple(known_gpus()),
        )
    space = candidates(case.variant, case.problem)
    all_launches = (type(case)(case.variant, config, case.problem).launches(gpu_product.sm_count) for config in space)
    launch_obstacles = [
        reason for launches in all_launches if (reason := why_block_is_too_large(launches, gpu_product.limits))
    ]
    combination_count = math.prod(len(values) for values in case.variant.tune.values())
    counts = {
        "case": f"{case.variant.id}{case.problem}",
        "combinations": combination_count,
        "allowed": len(space),
        "unfit": len(launch_obstacles),
        "gpu": gpu_product.name,
    }
    if as_json:
        click.echo(json.dumps(counts, indent=1))
        return
    for name, values in case.variant.tune.items():
        click.echo(f"{name:16} {len(values):5} values: {', '.join(map(str, values[:12]))}{', …' * (len(values) > 12)}")
    click.echo(f"{combination_count} combinations, {len(space)} that the rules and {case.problem} allow")
    if launch_obstacles:
        click.echo(
            f"{len(launch_obstacles)} of them can never be launched on {gpu_product.name}, such as for "
            f"{launch_obstacles[0]}"
        )
    click.echo("register counts are known only after compilation; times need a GPU")


def _print(tuning: Tuning, run: Run | None) -> None:
    """Print the precise measurements of the best configs, then why the other configs dropped out."""
    from opbench.report.tuning import lines

    for line in lines(tuning, run):
        click.echo(line)
