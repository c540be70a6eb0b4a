"""Find the operator that a kernel computes, for `opbench adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.cli.options import read_sizes, size_option, variants_option
from opbench.errors import OpbenchError, UsageError
from opbench.kernels.memory_header import NO_OPERATOR
from opbench.paths import next_command, write_file
from opbench.results.result import refuting_results
from opbench.running.options import CheckOptions

if TYPE_CHECKING:
    from opbench.adopting.proposal import Proposal
    from opbench.kernels.case import Case
    from opbench.kernels.folders import Catalog

TRIED_CASES, TRIAL_LIMIT_S = 3, 10.0
"""The number of cases on which a guessed operator is tried, and the time limit of one case in seconds."""


def _counterexample(file: Path, proposal: Proposal, catalog: Catalog) -> str:
    """Return a wrong case of a guessed operator as text, if most of a few tried cases are wrong; else "".

    If the kernel has the operator's name and nothing was guessed, no case is tried: then the kernel itself is wrong.
    """
    from opbench import api
    from opbench.adopting.ranking import words_of
    from opbench.running.targets import cases_to_check

    has_operator_name = set(words_of(proposal.kernel)) <= {*words_of(proposal.operator), "kernel"}
    if proposal.operator == NO_OPERATOR or (has_operator_name and not proposal.guesses):
        return ""
    catalog.set_proposed_header(file, proposal.text)
    options = CheckOptions(variants=catalog.extra_roots, cpu_only=True, time_limit_s=TRIAL_LIMIT_S, every=True)
    try:
        cases = cases_to_check(catalog, file, options.random_shapes, options.seed)
        # A kernel that is wrong only where its tiles do not divide the sizes computes this operator, with a bug.
        tried = sorted(cases, key=_count_divisible_sizes, reverse=True)[:TRIED_CASES]
        results = api.check_cases([case for case in cases if case in tried], options)
    except OpbenchError:  # For example without a compiler, the header is proposed without a test.
        return ""
    wrong_results = refuting_results(results, ("wrong", "failed"))
    return f"{wrong_results[0].problem} ({wrong_results[0].reason.splitlines()[0]})" if wrong_results else ""


def _count_divisible_sizes(case: Case) -> int:
    """Return the number of sizes of a case's problem that are multiples of 8."""
    return sum(isinstance(size, int) and size % 8 == 0 for size in case.problem.axes.values())


@click.command("adopt")
@click.argument("file", metavar="FILE.cu", type=click.Path(path_type=Path))
@click.option(
    "--operator",
    default="",
    metavar="NAME",
    help="The operator that the kernel computes, or `none` to check only memory accesses and "
    "races [default: guessed from the tensors, the name and the body].",
)
@click.option(
    "--kernel",
    default="",
    metavar="NAME",
    help="The kernel to describe, if the file has several [default: the one launched first].",
)
@size_option
@click.option("--write", is_flag=True, help="Insert the header at the top of FILE.cu instead of printing it.")
@variants_option
def adopt_command(
    file: Path, operator: str, kernel: str, sizes: tuple[str, ...], write: bool, roots: tuple[Path, ...]
) -> None:
    """Propose a header for FILE.cu, derived from its kernels and its launches <<<grid, block>>>.

    If no operator fits, propose a header without an operator (operator = "none"). It describes the launches and the
    buffers, so that opbench check can find memory faults and races. A guessed operator is tried on the CPU: if most
    cases are wrong, the header is one without an operator. The command prints each guess with its evidence, and each
    value that it could not read. It does not write a header that contradicts the file.
    """
    from opbench.adopting.adopting import adopt
    from opbench.kernels.folders import Catalog
    from opbench.running.targets import require_file

    require_file(file)
    catalog = Catalog(roots)
    proposal = adopt(file, catalog, operator, kernel, read_sizes(sizes))
    is_guessed = not (operator or kernel or sizes or proposal.contradictions)
    if is_guessed and (counterexample := _counterexample(file, proposal, catalog)):
        command = next_command("adopt", file, variants=roots, operator=proposal.operator)
        refutation = f"most cases are wrong or fail as {proposal.operator}, such as {counterexample}"
        proposal = adopt(file, catalog, NO_OPERATOR, kernel)
        proposal.notes.append(f"{refutation}; if the kernel should compute that: {command}")
    counterexample = f" ({'; '.join(proposal.evidence)})" if proposal.evidence else ""
    click.echo(f"operator: {proposal.operator}{counterexample}", err=True)
    for guess in proposal.guesses:
        click.echo(f"guess: {guess}", err=True)
    for note in proposal.notes:
        click.echo(f"note: {note}", err=True)
    for contradiction in proposal.contradictions:
        click.echo(f"contradiction: {contradiction}", err=True)
    if write and proposal.contradictions:
        raise UsageError(
            f"{file}: not written, as the header of {proposal.operator} would contradict the file: "
            f"{proposal.contradictions[0]}; a header without an operator: "
            + next_command("adopt", file, variants=roots, operator="none", write=True),
            kind="contradiction",
            subject=file,
            value=proposal.contradictions[0],
        )
    if write:
        content = proposal.text.encode() + file.read_bytes()
        write_file(file, content, "print the header instead: repeat the command without --write")
        click.echo(f"wrote the header of {file}", err=True)
    else:
        click.echo(proposal.text, nl=False)
    click.echo(f"next: {next_command('check', file, variants=roots)}", err=True)
