"""`opbench report`, `ceiling`, `ladder` and `doctor`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import click

from opbench import paths
from opbench.cli.options import gpu_option, json_option, variants_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import print_table, show_and_exit, stdout_console
from opbench.errors import EnvironmentFault, UsageError
from opbench.paths import next_command


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@variants_option
@gpu_option
@json_option
def report_command(run: Path, roots: tuple[Path, ...], gpu: str, as_json: bool) -> None:
    """Write the page and the charts of RUN again, and print its table.

    RUN is the folder of a run, a network run, a training, a search (opbench tune) or a self-test.

    --json prints the same as the --json of the command that made RUN.
    """
    from opbench.networks.records.training import is_training
    from opbench.networks.report import is_network
    from opbench.report.selftest import is_selftest
    from opbench.results.tuning import is_tuning

    if is_network(run):
        show = _report_network(run, as_json)
    elif is_training(run):
        show = _report_training(run, as_json)
    elif is_tuning(run):
        show = _report_tuning(run, as_json)
    elif is_selftest(run):
        show = _report_selftest(run, as_json)
    else:
        show = _report_run(run, roots, gpu, as_json)
    show_and_exit(0, show)


def _report_run(run: Path, roots: tuple[Path, ...], gpu: str, as_json: bool) -> Callable[[], None]:
    """Write the page of a run of cases again; return a function that prints its result."""
    from opbench.report import write_report
    from opbench.results.files import read_run
    from opbench.results.rows import rows
    from opbench.running.advising import advise_page

    finished_run = read_run(run)
    advice = advise_page(finished_run, gpu, roots, lambda text: click.echo(f"advise {text}", err=True))
    _print_written(write_report(finished_run, finished_run.folder, gpu, roots, advice))
    if as_json:
        return lambda: click.echo(json.dumps([asdict(r) for r in finished_run.results]))
    return lambda: print_table(rows(finished_run, gpu), finished_run.left_out)


def _print_written(files: Iterable[Path]) -> None:
    """Print the paths of written files."""
    for path in files:
        click.echo(f"wrote {path}", err=True)


def _report_training(run: Path, as_json: bool) -> Callable[[], None]:
    """Write the page of a training again; return a function that prints its result."""
    from opbench.networks.records.training import read_training
    from opbench.networks.report.training import headline, write_training

    record = read_training(run)
    _print_written(write_training(record, run if run.is_dir() else run.parent))
    return lambda: click.echo(json.dumps(record.to_json()) if as_json else "\n".join(headline(record)))


def _report_tuning(run: Path, as_json: bool) -> Callable[[], None]:
    """Write the page of a search again; return a function that prints its result."""
    from opbench.report.tuning import lines, to_json
    from opbench.report.tuning_page import write_tuning
    from opbench.results.tuning import finals_run, read_tuning

    tuning = read_tuning(run)
    finals = finals_run(tuning)
    _print_written([write_tuning(tuning, finals)])
    text = json.dumps(to_json(tuning, finals), indent=1) if as_json else "\n".join(lines(tuning, finals))
    return lambda: click.echo(text)


def _report_selftest(run: Path, as_json: bool) -> Callable[[], None]:
    """Write the page of a self-test again; return a function that prints its result."""
    from opbench.report.selftest import part_lines, read_selftest, write_selftest

    outcome = read_selftest(run)
    _print_written(write_selftest(outcome, run if run.is_dir() else run.parent))
    lines = [line for part in outcome.parts for line in part_lines(part)]
    text = json.dumps(outcome.to_json()) if as_json else "\n".join([*lines, outcome.summary()])
    return lambda: click.echo(text)


def _report_network(run: Path, as_json: bool) -> Callable[[], None]:
    """Write the page of a network run again; return a function that prints its result."""
    from opbench.networks.report import read_network
    from opbench.networks.report.page import write_network
    from opbench.networks.report.terminal import print_network

    record = read_network(run)
    _print_written(write_network(record, run if run.is_dir() else run.parent))
    if as_json:
        return lambda: click.echo(json.dumps(record.to_json()))
    return lambda: print_network(record, stdout_console(), paths.path_from_here(str(run)))


@click.command("ceiling")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Also store the run of the probes in this folder."
)
@json_option
def ceiling_command(out: Path | None, as_json: bool) -> None:
    """Measure the peaks of this GPU again with the probes of suites/ceilings.toml, and store them."""
    import tempfile

    from opbench.gpu import driver as cuda
    from opbench.gpu.limits.ceilings import datasheet, known_gpus
    from opbench.report.run.evidence import ceilings_table
    from opbench.running.probes import measure_ceilings

    if reason := cuda.why_missing():
        known = ", ".join(known_gpus())
        raise EnvironmentFault(
            f"{reason}, but peaks are measured on a GPU; choose a GPU with known peaks by --gpu NAME: {known}",
            kind="needs-gpu",
        )

    with tempfile.TemporaryDirectory(prefix="opbench-ceilings-") as scratch, progress_on_stderr() as on_progress:
        _, ceilings = measure_ceilings(out or Path(scratch), on_progress)
    if out:
        content = f"{json.dumps(ceilings.to_json(), indent=2)}\n".encode()
        paths.write_file(out / "ceilings.json", content, "choose another --out DIR")
    if as_json:
        click.echo(json.dumps(ceilings.to_json(), indent=2))
        return
    table = ceilings_table(ceilings, datasheet(ceilings.gpu))
    click.echo(f"{ceilings.gpu}: measured, datasheet, share of the datasheet, case that reached it")
    for label, measured, quoted, share, case in table["body"]:
        click.echo(f"{label:36} {measured:>13} {quoted:>13} {share:>6}  {case}".rstrip())


@click.command("ladder")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Write the files instead of printing the changes.")
@click.option("--check", "only_check", is_flag=True, help="Only check; exit with 1 if a file is out of date.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON instead of the changes: the files that are out of date, and those left unchanged with the reason.",
)
def ladder_command(runs: tuple[Path, ...], write: bool, only_check: bool, as_json: bool) -> None:
    """Update the tables in variants/<operator>/README.md and in README.md from RUNS (in a source checkout).

    Without --write, print the changes. Only operators that the runs measured change, and rows of other runs stay. A
    folder of network runs or trainings, such as reports/h200/networks, updates their tables in README.md and docs/.
    """
    from opbench.kernels.folders import Catalog
    from opbench.networks.report.overview import network_folders, network_tables
    from opbench.report.ladder_files import ladder_files
    from opbench.results.files import read_run

    root = paths.checkout()
    if write and only_check:
        raise UsageError(
            "--check writes nothing, and --write writes; remove one of the two options",
            kind="exclusive",
            subject=("--check", "--write"),
        )
    if root is None:
        raise UsageError(
            f"opbench ladder is for a checkout, whose committed READMEs it keeps; this opbench is installed in "
            f"{paths.PACKAGE}. Read a run instead: opbench report RUN",
            kind="not-a-checkout",
            subject=paths.PACKAGE,
        )
    networks = [folder for run in runs for folder in network_folders(run)]
    tables = network_tables(root, networks)
    files = ladder_files(root, Catalog(), [read_run(r) for r in runs if not network_folders(r)], tables)
    for path, reason in files.refusals.items():
        click.echo(f"left {path.relative_to(root)}: {reason}", err=True)
    for path, text in files.stale.items():
        if write:
            paths.write_file(path, text.encode(), f"print the changes with: {next_command('ladder', *runs)}")
        elif not (only_check or as_json):
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            name = path.relative_to(root).as_posix()
            diff = difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, name, n=1)
            click.echo("".join(diff), nl=False)
        click.echo(f"{'wrote' if write else 'stale'} {path.relative_to(root)}", err=True)
    if not files.stale and not files.refusals:
        click.echo("nothing to write: every document is up to date", err=True)
    elif not write and files.stale:
        click.echo(f"write them with: {next_command('ladder --write', *runs)}", err=True)
    if as_json:
        refusals = {path.relative_to(root).as_posix(): reason for path, reason in files.refusals.items()}
        stale = [path.relative_to(root).as_posix() for path in files.stale]
        click.echo(json.dumps({"stale": stale, "written": write, "left": refusals}, indent=1))
    if only_check and (files.stale or files.refusals):
        click.get_current_context().exit(1)


@click.command("doctor")
@json_option
def doctor_command(as_json: bool) -> None:
    """Show what this machine has, what is missing, and the command that installs it."""
    from opbench import doctor

    rows = doctor.diagnose()
    if as_json:
        click.echo(json.dumps(doctor.to_json(rows), indent=1))
    else:
        doctor.print_report(rows, stdout_console())
    click.get_current_context().exit(doctor.exit_code(rows))
