"""`opbench profile`, and the hidden command that the profilers watch."""

from __future__ import annotations

from pathlib import Path

import click

from opbench.cli import completion
from opbench.cli.options import case_option, variants_option
from opbench.errors import OpbenchError, UsageError
from opbench.paths import next_command


@click.command("profile")
@click.argument("name", metavar="CASE|FILE.cu", shell_complete=completion.variants)
@case_option
@click.option(
    "--tool",
    type=click.Choice(["ncu", "nsys"]),
    default="ncu",
    show_default=True,
    help="ncu: Nsight Compute (hardware counters). nsys: Nsight Systems (timeline).",
)
@click.option(
    "--set",
    "metric_set",
    default="",
    metavar="SET",
    help="Also collect this metric set of Nsight Compute, such as full.",
)
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the report and the counters [default: reports/profile].",
)
@variants_option
@click.option(
    "--time-limit",
    "time_limit_s",
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop the profiler after this time.",
)
def profile_command(
    name: str,
    pattern: str,
    tool: str,
    metric_set: str,
    run_folder: Path | None,
    roots: tuple[Path, ...],
    time_limit_s: float,
) -> None:
    """Profile one case with Nsight Compute or Nsight Systems.

    CASE is a full name such as 'matmul/shared_tile[TILE=16](m=512,n=512,k=512)'. The report and the counters are
    stored in the folder of --run; `opbench report` shows the counters.
    """
    from opbench.kernels.folders import Catalog
    from opbench.results.files import FILE, RunWriter
    from opbench.running.profile import ProfileOptions, profile_case, target_of
    from opbench.running.targets import case_of

    found = case_of(name, pattern, Catalog(roots))
    folder = run_folder or Path("reports") / "profile"
    target = target_of(found, name, roots)
    writer = RunWriter(folder) if (folder / FILE).exists() else None
    options = ProfileOptions(tool, metric_set, time_limit_s)  # type: ignore[arg-type]
    try:
        counters = profile_case(target, folder, options, writer, lambda line: click.echo(line, err=True))
    finally:
        if writer:
            writer.close()
    for key, value in counters.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            click.echo(f"{key:28} {value:.6g}")
    if writer:
        click.echo(f"stored in {folder / FILE}; show it with: {next_command('report', folder)}", err=True)


@click.command("profile-target", hidden=True)
@click.option("--case", "case", required=True)
@click.option("--file", "file", type=click.Path(path_type=Path))
@variants_option
def profile_target_command(case: str, file: Path | None, roots: tuple[Path, ...]) -> None:
    """Check one case and launch it once more inside its NVTX range; what `opbench profile` runs under the tool."""
    from opbench.checking.backends import open_backend
    from opbench.checking.checking import Session
    from opbench.kernels.folders import Catalog
    from opbench.nvtx import case_range
    from opbench.running.targets import case_of

    catalog = Catalog(roots)
    found = case_of(file, case, catalog) if file else catalog.case(case)
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
