"""`opbench profile`, and the program that the tools watch."""

from __future__ import annotations

from pathlib import Path

import click

from opbench.cli import completion
from opbench.cli.options import variants_option
from opbench.errors import OpbenchError, UsageError


@click.command("profile")
@click.argument("case", metavar="CASE", shell_complete=completion.variants)
@click.option(
    "--tool",
    type=click.Choice(["ncu", "nsys"]),
    default="ncu",
    show_default=True,
    help="Nsight Compute (counters) or Nsight Systems (timeline).",
)
@click.option(
    "--set", "metric_set", default="", metavar="SET", help="A set of Nsight Compute's own on top, such as full."
)
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The run's folder that keeps the report and the counters [default: reports/profile].",
)
@variants_option
@click.option(
    "--time-limit",
    "time_limit_s",
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop the tool after this.",
)
def profile_command(
    case: str, tool: str, metric_set: str, run_folder: Path | None, roots: tuple[Path, ...], time_limit_s: float
) -> None:
    """Profile one CASE, a printed name such as 'matmul/shared_tile[TILE=16](m=512,n=512,k=512)'.

    The tool's report and its counters are kept in the run's folder; `opbench report` shows the counters.
    """
    from opbench import profile
    from opbench.catalog.folders import case_named
    from opbench.results.files import FILE, RunWriter

    found = case_named(case, roots)
    folder = run_folder or Path("reports") / "profile"
    extra = [part for root in roots for part in ("--variants", str(root.resolve()))]
    target = profile.Target(
        found.name,
        profile.target_argv(found.name, extra),
        precision=found.variant.precision,
        chip=profile.current_chip(),
    )
    writer = RunWriter(folder) if (folder / FILE).exists() else None
    options = profile.ProfileOptions(tool, metric_set, time_limit_s)  # type: ignore[arg-type]
    try:
        counters = profile.profile_case(target, folder, options, writer, lambda line: click.echo(line, err=True))
    finally:
        if writer:
            writer.close()
    for key, value in counters.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            click.echo(f"{key:28} {value:.6g}")
    if writer:
        click.echo(f"kept in {folder / FILE}; show it with: opbench report {folder}", err=True)


@click.command("profile-target", hidden=True)
@click.option("--case", "case", required=True)
@variants_option
def profile_target_command(case: str, roots: tuple[Path, ...]) -> None:
    """Check one case and launch it once more inside its NVTX range; what `opbench profile` runs under the tool."""
    from opbench.backends import open_backend
    from opbench.catalog.folders import case_named
    from opbench.nvtx import case_range
    from opbench.session.checking import Session

    found = case_named(case, roots)
    backend = open_backend("cuda")
    session = Session(backend)
    reason = session.unsupported(found)
    if reason:
        raise UsageError(f"{found.name}: unsupported: {reason}")
    verdict = session.check(found).verdict
    if not verdict.right:
        raise OpbenchError(f"{found.name}: wrong: {verdict.reason}")
    launch = session.launch(found)
    launch()
    backend.synchronize()
    with case_range(found.name, found.variant.operator):
        launch()
        backend.synchronize()
