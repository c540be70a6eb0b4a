"""`opbench adopt`."""

from __future__ import annotations

from pathlib import Path

import click

from opbench.cli.options import read_sizes, size_option, variants_option
from opbench.errors import UsageError
from opbench.paths import next_command


@click.command("adopt")
@click.argument("file", metavar="FILE.cu", type=click.Path(path_type=Path, exists=True, dir_okay=False))
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
    buffers, so that opbench check can find memory faults and races. The command prints each guess with its evidence,
    and each value that it could not read. It does not write a header that contradicts the file.
    """
    from opbench.adopting.adopting import adopt
    from opbench.kernels.folders import Catalog
    from opbench.paths import write_atomically

    catalog = Catalog(roots)
    found = adopt(file, catalog, operator, kernel, read_sizes(sizes))
    why = f" ({'; '.join(found.evidence)})" if found.evidence else ""
    click.echo(f"operator: {found.operator}{why}", err=True)
    for guess in found.guesses:
        click.echo(f"guess: {guess}", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    for contradiction in found.contradictions:
        click.echo(f"contradiction: {contradiction}", err=True)
    if write and found.contradictions:
        raise UsageError(
            f"{file}: not written, as the header of {found.operator} would contradict the file: "
            f"{found.contradictions[0]}; a header without an operator: "
            + next_command("adopt", file, variants=roots, operator="none", write=True)
        )
    if write:
        write_atomically(file, found.text.encode() + file.read_bytes())
        click.echo(f"wrote the header of {file}", err=True)
    else:
        click.echo(found.text, nl=False)
    click.echo(f"next: {next_command('check', file, variants=roots)}", err=True)
