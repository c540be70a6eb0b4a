"""`opbench run` and `opbench check`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from opbench import units
from opbench.checking import backends
from opbench.cli import completion, discard_stdout
from opbench.cli.dataclass_options import add_options
from opbench.cli.options import json_option, read_sizes, size_option
from opbench.cli.progress import progress_on_stderr
from opbench.errors import UsageError
from opbench.paths import next_command, write_file
from opbench.results.result import BAD_STATUSES, exit_code, refuting_results
from opbench.running.options import CheckOptions, RunOptions

if TYPE_CHECKING:
    from rich.console import Console

    from opbench.backend.findings import Finding
    from opbench.export.sarif import FaultAtLine
    from opbench.results.files import Run
    from opbench.results.header import SkippedVariants
    from opbench.results.own_variants import VariantComparison
    from opbench.results.result import FaultKey, Result
    from opbench.results.rows import Row
    from opbench.running.clusters import Tls


@click.command("run")
@click.argument(
    "targets", nargs=-1, required=True, metavar="[SUITE|OPERATOR|CASE|FILE.cu]...", shell_complete=completion.suites
)
@add_options(RunOptions)
@click.option(
    "--tls-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --on dask: certificate of the certificate authority; requires --tls-cert and --tls-key.",
)
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="With --on dask: the client certificate."
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --on dask: the private key of the client certificate.",
)
@json_option
def run_command(
    targets: tuple[str, ...],
    options: RunOptions,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    as_json: bool,
) -> None:
    """Check and time variants, and write a report.

    SUITE is a file in suites/ or its name. OPERATOR stands for all its variants. CASE is a full name (see opbench list
    cases). FILE.cu is a kernel of your own; it runs on a few convenient sizes, and `opbench check` tries others.
    Several files are measured together and compared: opbench run A.cu B.cu
    """
    from opbench import api
    from opbench.results.own_variants import compare_own_variants
    from opbench.results.rows import rows
    from opbench.results.showing import phases_text

    if options.resume and options.out is None:
        raise click.UsageError("--resume needs --out DIR, the folder of the run to complete")
    options = replace(options, tls=_tls(tls_ca, tls_cert, tls_key), command=tuple(sys.argv[1:]))
    with progress_on_stderr() as on_progress:
        run = api.run(targets, options, tell=on_progress)
    for warning in run.warnings:
        click.echo(f"warning: {warning}", err=True)
    report = (
        run.folder / "report.html" if options.report else next_command("report", run.folder, variants=options.variants)
    )
    click.echo(f"report: {report}", err=True)
    if run.header.backend == "cuda" and (phases := phases_text(run)):
        click.echo(
            f"time: {units.duration(run.wall_s)}, of which {phases}" if run.wall_s else f"time: {phases}", err=True
        )
    if note := _unused_gpus(options, run):
        click.echo(f"note: {note}", err=True)
    if note := _sizes_not_checked(targets, options.variants, run.results):
        click.echo(f"note: {note}", err=True)
    print_and_exit(
        run.results, as_json, lambda: print_table(rows(run, options.gpu), run.left_out, compare_own_variants(run))
    )


def _unused_gpus(options: RunOptions, run: Run) -> str:
    """Return a note that a run of several problems used one GPU of several; "" for none."""
    is_divisible = len({(result.operator, result.problem) for result in run.results}) > 1
    if run.header.backend != "cuda" or options.gpus or options.on or not is_divisible:
        return ""
    count = sum(gpu.name == run.header.environment.gpu for gpu in backends.available_gpus())
    return f"one of {count} GPUs was used; to divide the problems among all of them: --gpus all" if count > 1 else ""


def _sizes_not_checked(targets: Sequence[str], roots: Sequence[Path], results: Sequence[Result]) -> str:
    """Return a note that the user's files were checked on few problems, with a command for more; "" for none."""
    own_files = _files_of(tuple(targets))
    problems = list(
        dict.fromkeys(f"{r.operator}{r.problem}" for r in results if f"{r.operator}/{r.variant}" in own_files)
    )
    if not problems:
        return ""
    problem_text = problems[0] if not problems[1:] else f"{len(problems)} problems"
    files = " and ".join(dict.fromkeys(own_files.values()))
    command = next_command("check", *targets, variants=roots)
    return f"{files} checked on {problem_text} only; odd sizes and random shapes: {command}"


def _tls(ca: Path | None, certificate: Path | None, key: Path | None) -> Tls | None:
    """Return the TLS files; None if none is given; raise UsageError if only some are."""
    from opbench.running.clusters import Tls

    if ca and certificate and key:
        return Tls(ca, certificate, key)
    files = {"--tls-ca": ca, "--tls-cert": certificate, "--tls-key": key}
    if any(files.values()):
        given = " and ".join(name for name, file in files.items() if file)
        missing = " and ".join(name for name, file in files.items() if not file)
        raise click.UsageError(f"{given} without {missing}: the three TLS files go together, so add {missing}")
    return None


@click.command("check")
@click.argument(
    "targets", nargs=-1, metavar="[OPERATOR|OPERATOR/VARIANT|CASE|FILE.cu]...", shell_complete=completion.variants
)
@add_options(CheckOptions)
@size_option
@click.option(
    "--sarif",
    "sarif_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the findings as SARIF, which code hosts show at the source lines.",
)
@click.option(
    "--notes",
    "with_notes",
    is_flag=True,
    help="Also print notes on allowed patterns, such as several threads that store the same value.",
)
@click.option("--list", "only_list", is_flag=True, help="Print the names of the cases instead of checking them.")
@click.option(
    "--watch", is_flag=True, help="Check FILE.cu again each time that you save it or a header that it includes."
)
@json_option
def check_command(
    targets: tuple[str, ...],
    options: CheckOptions,
    sizes: tuple[str, ...],
    sarif_file: Path | None,
    with_notes: bool,
    only_list: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Check that variants compute correct results, on the examples of their operator and on random shapes.

    The command measures no time and writes no report. With no target, it checks all variants.
    """
    if watch:
        from opbench.cli.watch import watch_targets

        if as_json or sarif_file:
            flag = "--json" if as_json else "--sarif"
            raise click.UsageError(
                f"--watch and {flag}: a watch has no final result to write; remove one of the two options"
            )
        if options.untrusted:
            raise click.UsageError(
                "--watch and --untrusted: --watch is only for kernels that you trust; remove one of the two options"
            )
        watch_targets(targets, options.variants)
    from opbench import api

    def on_note(text: str) -> None:
        # `click.echo(err=True)` would print into the line of the progress bar.
        click.echo(f"note: {text}", file=sys.stderr)

    if only_list:
        with_huge = options.huge or (options.every and options.backend == "cpu" and not options.problems)
        names = api.names_of_cases_to_check(targets, replace(options, huge=with_huge), note=on_note)
        show_and_exit(0, lambda: click.echo("\n".join(names)))
    if options.backend == "cpu" and all(Path(target).is_file() for target in targets if target.endswith(".cu")):
        backends.start_runtime_build(options.backend)  # The build runs in the background while Python imports modules.
    with progress_on_stderr() as on_progress:
        results = api.check(targets, replace(options, sizes=read_sizes(sizes)), tell=on_progress, note=on_note)
    for text in _guessed_operator_notes(results, targets):
        on_note(text)
    from opbench.export.sarif import faults_by_line, notes_by_line, sarif_log

    noted_findings = notes_by_line(results, lambda result: _file_of(result, targets)) if with_notes else []
    if sarif_file is not None:
        findings = [*faults_by_line(results, lambda result: _file_of(result, targets)), *noted_findings]
        content = json.dumps(sarif_log(findings), indent=1).encode() + b"\n"
        write_file(sarif_file, content, "choose another --sarif FILE")
        wrong = len(findings) - len(noted_findings)
        click.echo(f"wrote {sarif_file}: {units.count_noun(wrong, 'fault')}", err=True)
    print_and_exit(results, as_json, lambda: _print_verdicts(results, targets, noted_findings))


def _guessed_operator_notes(results: Sequence[Result], targets: Sequence[str]) -> list[str]:
    """Return a note for each file that has no header and is mostly wrong, as its operator was only guessed."""
    from opbench.running.memory import OPERATOR_NAME as MEMORY
    from opbench.running.targets import is_file_without_header

    result = []
    for target in targets:
        own_results = [r for r in results if r.variant == Path(target).stem and r.operator != MEMORY]
        if is_file_without_header(target) and refuting_results(own_results):
            command = next_command("check", target, memory=True)
            result.append(f"{target} was taken for {own_results[0].operator}; if it computes something else: {command}")
    return result


def print_and_exit(results: Sequence[Result], as_json: bool, show: Callable[[], None]) -> None:
    """Print the results and exit with their code."""
    show_and_exit(
        exit_code(results), (lambda: click.echo(json.dumps([asdict(r) for r in results]))) if as_json else show
    )


def show_and_exit(code: int, show: Callable[[], None]) -> None:
    """Call `show` and exit with a code, even if the output's reader closes the pipe early."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    click.get_current_context().exit(code)


REPEATED_OPTIONS = (
    "--cpu-only",
    "--backend",
    "--gpu",
    "--variants",
    "--random",
    "--problem",
    "--time-limit",
    "--seed",
    "--memory",
    "--size",
    "--untrusted",
    "--trust",
)


def _flags_given() -> str:
    """Return the options of this command line that determine the cases and their results, as text for a command."""
    context, flags = click.get_current_context(), [""]
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.opts[0] in REPEATED_OPTIONS:
            value = context.params[option.name or ""]
            values = value if option.multiple else [value]
            flags += [option.opts[0] if v is True else f"{option.opts[0]} {shlex.quote(str(v))}" for v in values]
    return " ".join(flags)


def _print_verdicts(results: Sequence[Result], targets: tuple[str, ...], note_faults: Sequence[FaultAtLine]) -> None:
    """Print one line per variant, then each kind of failure once, with its source line and the rerun command."""
    from opbench.results.faults import faults_of
    from opbench.running.memory import OPERATOR_NAME as MEMORY

    counts_by_variant: dict[str, dict[str, int]] = {}
    failures: dict[tuple[str, FaultKey], list[Result]] = {}
    reasons_by_variant: dict[str, dict[FaultKey, str]] = {}
    gpu_code: dict[str, list[Result]] = {}
    for result in results:
        variant = f"{result.operator}/{result.variant}"
        counts = counts_by_variant.setdefault(variant, {})
        counts[result.status] = counts.get(result.status, 0) + 1
        if result.status in BAD_STATUSES:
            failures.setdefault((variant, result.fault), []).append(result)
        gpu_code.setdefault(variant, []).append(result)
        if result.status in ("unsupported", "no fault found"):
            reasons_by_variant.setdefault(variant, {}).setdefault(result.fault, result.reason)
    width, files = max((len(name) for name in counts_by_variant), default=0), _files_of(targets)
    for name, counts in counts_by_variant.items():
        gpu_text = _branch_text(gpu_code[name]) + _gpu_text(gpu_code[name])
        reasons_text = f" ({'; '.join(reasons_by_variant[name].values())})" if name in reasons_by_variant else ""
        verdicts = ", ".join(_colour_status(status, f"{count} {status}") for status, count in counts.items())
        click.echo(f"{name:{width}}  {verdicts}{reasons_text}{gpu_text}")
    for (variant, _), cases in failures.items():
        first_result = cases[0]
        total = sum(counts_by_variant[variant].values())
        count_text = f"{len(cases)} of {total} cases, the first is " if len(cases) > 1 else ""
        target = files.get(variant, variant)
        rerun = f"{next_command('check', target)}{_flags_given()} --case {shlex.quote(first_result.case)}"
        notes = (f"{first_result.status}: {count_text}{first_result.case}", f"rerun: {rerun}")
        faults = faults_of(first_result, _file_of(first_result, targets))
        # Without a reference, each finding is an own failure.
        *other_faults, last_fault = faults if first_result.operator == MEMORY else faults[:1]
        for fault in other_faults:
            _print_finding(fault, ())
        _print_finding(last_fault, notes)
    for note in note_faults:
        _print_finding(note.finding, (), "note: ")
    _print_uncompiled(results)


def _print_finding(finding: Finding, notes: Sequence[str], prefix: str = "") -> None:
    """Print a finding with its source line, its first line in colour."""
    from opbench.report.findings import WIDTH, finding_lines

    headline, *rest = finding_lines(finding, notes, min(shutil.get_terminal_size((WIDTH, 24)).columns, 100))
    click.echo()
    click.echo(prefix + _colour_status("right" if prefix else "wrong", headline))
    for line in rest:
        click.echo(line)


STATUS_COLOURS = {"right": "green", "unsupported": "yellow", "no fault found": "cyan"}


def _colour_status(status: str, text: str) -> str:
    """Colour a verdict's text on a terminal, unless NO_COLOR is set (no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, STATUS_COLOURS.get(status, "red"))


def _gpu_text(results: Sequence[Result]) -> str:
    """Return a clause on whether a variant's kernels compile for an absent GPU, such as ", compiles for
    sm_90"; or "".
    """
    if any(r.rejected for r in results):
        return ", refused by NVRTC"
    compiled = [r for r in results if r.compiled_for]
    tried_text = f" ({len(compiled)} of {len(results)} cases tried)" if len(compiled) < len(results) else ""
    return f", compiles for {' and '.join(sorted({r.compiled_for for r in compiled}))}{tried_text}" if compiled else ""


def _branch_text(results: Sequence[Result]) -> str:
    """Return a clause on the branch of `#if __CUDA_ARCH__` that was checked; "" if the kernel has none."""
    checked = sorted({r.verdict.architecture for r in results if r.verdict and r.verdict.architecture})
    return f", checked as {' and '.join(checked)} (__CUDA_ARCH__)" if checked else ""


def _print_uncompiled(results: Sequence[Result]) -> None:
    """Print each reason why kernels were not compiled for a GPU once."""
    missing = {r.resources_missing for r in results if not r.rejected} - {""}
    for reason in sorted(missing):
        click.echo(f"note: not compiled for a GPU: {reason}", err=True)


def _files_of(targets: tuple[str, ...]) -> dict[str, str]:
    """Return the user's own files by the id of their variant, as the user typed them."""
    from opbench.kernels.folders import Catalog
    from opbench.running.memory import OPERATOR_NAME as MEMORY
    from opbench.running.targets import is_file, own_variants

    catalog = Catalog(click.get_current_context().params["variants"])
    result: dict[str, str] = {}
    for target in filter(is_file, targets):
        result[f"{MEMORY}/{Path(target).stem}"] = target
        with contextlib.suppress(UsageError):  # A file that fits no operator ran in memory mode, and has no variant.
            result |= {v.id: target for v in own_variants(Path(target), catalog)}
    return result


def _file_of(result: Result, targets: tuple[str, ...]) -> str:
    """Return the file of a result's variant: as the user typed it, else from the catalog."""
    from opbench.kernels.folders import Catalog

    if typed_file := _files_of(targets).get(f"{result.operator}/{result.variant}"):
        return typed_file
    variants = Catalog(click.get_current_context().params["variants"]).variants(result.operator)
    return str(next(v.path for v in variants if v.name == result.variant))


def print_table(rows: Sequence[Row], left_out: SkippedVariants, own: Sequence[VariantComparison] = ()) -> None:
    """Print the table of a run on stdout."""
    from opbench.report.terminal import print_table as show

    show(rows, stdout_console(), left_out, own)


def stdout_console() -> Console:
    """Return a console that raises BrokenPipeError for a closed stdout; rich's own console would exit with code 1."""
    from rich.console import Console

    class StdoutConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return StdoutConsole()


def line_printer(console: Console) -> Callable[..., None]:
    """Return a function that prints a line of text in a style; only the terminal itself may wrap the line."""
    from rich.text import Text

    def print_line(text: str = "", style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    return print_line
