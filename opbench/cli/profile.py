"""Profile a case, for `opbench profile`; `profile-target` is the hidden command that the profiler runs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import units
from opbench.cli import completion
from opbench.cli.options import case_option, json_option, variants_option
from opbench.errors import OpbenchError, UsageError
from opbench.paths import next_command, path_from_here

if TYPE_CHECKING:
    from opbench.insight.source_profile import SourceProfile

SUMMARY_WIDTH = 110
"""Columns of the summary on a terminal."""
SOURCE_WIDTH = 44
MAX_EXPLAINED_REASONS = 3
"""The most reasons of waits that the summary explains."""


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
    "--source",
    is_flag=True,
    help="Also sample where warps wait: a page of the source and machine code, and the hottest lines.",
)
@json_option
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
    source: bool,
    as_json: bool,
    run_folder: Path | None,
    roots: tuple[Path, ...],
    time_limit_s: float,
) -> None:
    """Profile one case with Nsight Compute or Nsight Systems.

    CASE is a full name such as 'matmul/shared_tile[TILE=16](m=512,n=512,k=512)'. The report and the counters are
    stored in the folder of --run; `opbench report` shows the counters.

    With --source, Nsight Compute also samples the reasons why warps wait. opbench charges each sample to the load, the
    barrier or the matrix product that a warp waits for, and says what shortens the wait.
    """
    from opbench.kernels.folders import Catalog
    from opbench.results.files import FILE, RunWriter
    from opbench.running.profile import ProfileOptions, profile_case, read_source, target_of
    from opbench.running.targets import case_of

    if source and tool != "ncu":
        raise UsageError(
            f"--source needs --tool ncu, because Nsight Systems samples no instructions; replace --tool {tool} by "
            "--tool ncu",
            kind="wrong-tool",
            subject="--source",
            value=tool,
            allowed="ncu",
        )
    catalog = Catalog(roots)
    selected = case_of(name, pattern, catalog)
    folder = run_folder or Path("reports") / "profile"
    target = target_of(selected, name, roots)
    writer = RunWriter(folder) if (folder / FILE).exists() else None
    options = ProfileOptions(tool, metric_set, time_limit_s, source)  # type: ignore[arg-type]
    print_line = partial(click.echo, err=True)
    with closing(writer) if writer else nullcontext():
        counters = profile_case(target, folder, options, writer, print_line)
    if source:
        profile = read_source(selected, target, folder, options, print_line, catalog)
        page = _write_page(profile, folder / counters["report"])
        if as_json:
            click.echo(json.dumps({**profile.to_json(), "counters": counters, "page": str(page)}, indent=1))
        else:
            print_source(profile, click.echo)
            click.echo(f"source and machine code: {path_from_here(str(page))}", err=True)
    elif as_json:
        click.echo(json.dumps(counters, indent=1))
    else:
        for key, value in counters.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                click.echo(f"{key:28} {value:.6g}")
    if writer:
        click.echo(f"stored in {folder / FILE}; show it with: {next_command('report', folder)}", err=True)


def _write_page(profile: SourceProfile, report: Path) -> Path:
    """Write the page next to Nsight Compute's report; return its path."""
    from opbench.report.source_page import write_source

    return write_source(profile, report.with_name(report.name.removesuffix(".ncu-rep") + ".html"))


def print_source(profile: SourceProfile, echo: Callable[[str], None]) -> None:
    """Print the lines where warps wait most, then the meaning and the remedy of the most frequent reasons."""
    from opbench.report.source_page import agreement_sentence, reasons_text, remedy_lines, summary, waited_text
    from opbench.tables import align_columns

    echo(profile.case)
    echo(textwrap.fill(summary(profile), SUMMARY_WIDTH))
    echo(textwrap.fill(agreement_sentence(profile), SUMMARY_WIDTH))
    if not profile.total:
        return
    rows = [
        [
            units.percent(line.total / profile.total),
            line.place,
            _shorten(line.text.strip()),
            "; ".join(filter(None, (reasons_text(line.charged, line.total), waited_text(kernel, line)))),
        ]
        for kernel, line in profile.hottest()
        if line.total
    ]
    echo("")
    for text in align_columns(("samples", "line", "source", "reasons"), rows, (1, 2, 3)):
        echo(text.rstrip())
    _print_limits(profile, echo)
    for remedy in profile.remedies[:MAX_EXPLAINED_REASONS]:
        remedy_texts = remedy_lines(remedy, profile.total)
        causes = f" It waits for: {remedy_texts['causes']}." if remedy_texts["causes"] else ""
        echo("")
        heading = f"{remedy_texts['title']} {remedy_texts['share']}"
        paragraph = f"{heading}: {remedy_texts['meaning']}{causes} {remedy_texts['remedy']}"
        echo(textwrap.fill(paragraph, SUMMARY_WIDTH, subsequent_indent="  "))
        for mechanism, variants in list(remedy.variants.items())[:MAX_EXPLAINED_REASONS]:
            echo(f"  {mechanism}: see {', '.join(variants[:2])}")


def _print_limits(profile: SourceProfile, echo: Callable[[str], None]) -> None:
    """Print the least time that each limit of the GPU allows, with its share of the measured time."""
    from opbench.report.speed_of_light import BAR_WIDTH, limit_bars

    bars = limit_bars(profile.bounds, profile.time_s, counted=True)
    if not bars:
        return
    gpu = profile.gpu.removeprefix("NVIDIA ")
    echo(f"\nleast time that each limit of {gpu} allows, and its share of the measured time")
    for bar in bars:
        echo(f"{bar.name:16} {units.time(bar.time_s):>9} {bar.percent:>6}  {bar.text:{BAR_WIDTH}}  {bar.note}".rstrip())


def _shorten(text: str) -> str:
    """Return a text cut to `SOURCE_WIDTH` characters."""
    return text if len(text) <= SOURCE_WIDTH else text[: SOURCE_WIDTH - 1] + "…"


@click.command("profile-target", hidden=True)
@click.option("--case", "case", required=True)
@click.option("--file", "file", type=click.Path(path_type=Path))
@variants_option
def profile_target_command(case: str, file: Path | None, roots: tuple[Path, ...]) -> None:
    """Check one case and launch it in its NVTX range; `opbench profile` runs this command in the profiler."""
    from opbench.checking.backends import open_backend
    from opbench.checking.checking import Session
    from opbench.kernels.folders import Catalog
    from opbench.nvtx import case_range
    from opbench.running.targets import case_of

    catalog = Catalog(roots)
    selected = case_of(file, case, catalog) if file else catalog.case(case)
    backend = open_backend("cuda")
    session = Session(backend)
    reason = session.unsupported_reason(selected)
    if reason:
        raise UsageError(
            f"{selected.name}: not profiled, because this GPU does not support the case: {reason}; choose another "
            "case from: opbench list cases",
            kind="unsupported",
            subject=selected.name,
        )
    verdict = session.check(selected).verdict
    if not verdict.right:
        raise OpbenchError(
            f"{selected.name}: not profiled, because its result is wrong: {verdict.reason}; details: "
            f"{next_command('check', file or selected.name, variants=roots)}",
            kind="not-right",
            subject=selected.name,
        )
    launch = session.launch(selected)
    launch()
    backend.synchronize()
    with case_range(selected.name, selected.variant.operator):
        launch()
        backend.synchronize()
