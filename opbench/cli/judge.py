"""`opbench judge` and `opbench verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import paths, units
from opbench.cli import completion
from opbench.cli.dataclass_options import add_options
from opbench.cli.options import json_option
from opbench.cli.progress import progress_on_stderr
from opbench.cli.run import show_and_exit
from opbench.errors import EXIT_ENVIRONMENT, EXIT_OK, EXIT_WRONG
from opbench.judging.options import JudgeOptions

if TYPE_CHECKING:
    from opbench.judging.document import VerdictDocument

EXIT_CODES = {"accepted": EXIT_OK, "refused": EXIT_WRONG, "not decided": EXIT_ENVIRONMENT}


@click.command("judge")
@click.argument(
    "targets", nargs=-1, required=True, metavar="[FILE.cu|OPERATOR/VARIANT]...", shell_complete=completion.variants
)
@add_options(JudgeOptions)
@json_option
def judge_command(targets: tuple[str, ...], options: JudgeOptions, as_json: bool) -> None:
    """Judge a kernel that somebody submits, and write one verdict.

    The verdict says whether the kernel compiles, is memory-safe, race-free and right, how fast it is, how it compares
    with the library and the best known variant, which signs of cheating it has, and what to do next. Sizes and inputs
    are drawn with a secret seed, which the verdict shows. Exit codes: 0 accepted, 1 refused, 3 not decided.
    """
    from opbench.judging.document import to_text, write_document
    from opbench.judging.judge import judge
    from opbench.judging.page import write_verdict_page

    with progress_on_stderr() as on_progress:
        document = judge(targets, options, on_progress=on_progress)
    folder = options.out or paths.new_run_folder("judge")
    path = write_document(document, folder)
    write_verdict_page(document, folder)
    click.echo(f"verdict: {path}", err=True)
    show = (lambda: click.echo(to_text(document), nl=False)) if as_json else (lambda: _print(document))
    show_and_exit(EXIT_CODES[document.overall], show)


def _print(document: VerdictDocument) -> None:
    from opbench.judging.page import verdict_lines

    for line in verdict_lines(document):
        click.echo(line)


@click.command("verify")
@click.argument("verdict", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("targets", nargs=-1, metavar="[FILE.cu|OPERATOR/VARIANT]...")
@click.option(
    "--trust",
    is_flag=True,
    help="Accept a verdict that was made with --trust or names Python code: this code runs with your rights.",
)
@click.option(
    "--no-cage",
    is_flag=True,
    help="Accept a verdict that was made with --no-cage: its kernels run on the CPU with your rights.",
)
@json_option
def verify_command(verdict: Path, targets: tuple[str, ...], trust: bool, no_cage: bool, as_json: bool) -> None:
    """Judge again with the seed of VERDICT, and say which fields differ.

    The kernels are those that the verdict names, or the files given here. Times are equal if their intervals overlap.
    The settings are those of VERDICT: a GPU is used if VERDICT used one, and there is no cage if VERDICT was made with
    --no-cage. Exit codes: 0 nothing differs, 1 something differs.
    """
    import json
    from dataclasses import asdict

    from opbench.judging.verify import verify

    with progress_on_stderr() as on_progress:
        verification = verify(verdict, targets, trust=trust, no_cage=no_cage, on_progress=on_progress)
    for note in verification.notes:
        click.echo(f"note: {note}", err=True)

    def show() -> None:
        if as_json:
            click.echo(json.dumps(asdict(verification)))
            return
        for difference in verification.differences:
            click.echo(f"differs: {difference.field}: {difference.stored} in {verdict}, {difference.now} now")
        count = len(verification.differences)
        click.echo(f"{units.count_noun(count, 'field')} differ" if count else "nothing differs")

    show_and_exit(EXIT_WRONG if verification.differences else EXIT_OK, show)
