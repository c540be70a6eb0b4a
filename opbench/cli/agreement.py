"""`opbench agreement`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench import units
from opbench.cli.options import json_option
from opbench.cli.run import line_printer, stdout_console
from opbench.results.agreement import Agreement, CountComparison, Summary

if TYPE_CHECKING:
    from rich.console import Console


@click.command("agreement")
@click.argument("cpu_run", metavar="CPU_RUN", type=click.Path(path_type=Path))
@click.argument("gpu_run", metavar="GPU_RUN", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write agreement.html and agreement.png to this folder.",
)
@json_option
def agreement_command(cpu_run: Path, gpu_run: Path, out: Path | None, as_json: bool) -> None:
    """Compare the memory traffic that the emulator counted in CPU_RUN with the hardware counters of GPU_RUN."""
    from opbench.results.agreement import compare_runs
    from opbench.results.files import read_run

    cpu, gpu = read_run(cpu_run), read_run(gpu_run)
    agreement = compare_runs(cpu, gpu)
    if out is not None:
        from opbench.report.agreement import provenance, write_agreement

        for path in write_agreement(agreement, out, "Predicted against measured traffic", provenance(cpu, gpu)):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        click.echo(json.dumps(agreement.to_json(), indent=1))
    else:
        print_agreement(agreement, stdout_console())


def print_agreement(agreement: Agreement, console: Console) -> None:
    """Print how many counts agree, which do not, and which cases could not be compared."""
    from opbench.report.agreement import verdict_sentences
    from opbench.results.agreement import (
        corrected_comparisons,
        inexact_comparisons,
        quantity_summaries,
        reasons_with_cases,
    )
    from opbench.tables import align_columns

    print_line = line_printer(console)

    def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
        for number, line in enumerate(align_columns(head, rows, left)):
            print_line(line, "" if number else "dim")
        print_line()

    print_line(verdict_sentences(agreement) + "\n", "bold")
    head = ("counts", "compared", "as counted", "corrected", "within 5 %", "15 %", "outside", "in bounds", "cases",
            "all equal")  # fmt: skip
    print_table(head, [_summary_cells(s) for s in (*quantity_summaries(agreement.comparisons), *agreement.summaries())])
    explanation = "as counted: the source's accesses; corrected: predicted from them and the machine code"
    print_line(explanation + "\n", "dim")
    columns = ("quantity", "counted", "predicted", "at most", "measured", "off by", "")
    comparisons_by_title = {
        "not equal": inexact_comparisons(agreement.comparisons),
        "corrected": corrected_comparisons(agreement.comparisons),
    }
    for name, comparisons in comparisons_by_title.items():
        if comparisons:
            print_table((name, *columns), [_comparison_cells(c) for c in comparisons], left=(0, 1))
    for reason_text, cases in reasons_with_cases(agreement.comparisons).items():
        print_line(f"{reason_text}: {cases[0]}{f' and {len(cases) - 1} more' if cases[1:] else ''}")
    test_cases = sorted({c.case for c in agreement.comparisons if c.held_out})
    print_line(f"test set, selected by a hash of the name ({len(test_cases)} cases):")
    for case in test_cases:
        print_line(f"  {case}")
    for case, reason in agreement.left_out.items():
        print_line(f"not compared: {case}: {reason}", "yellow")


def _summary_cells(summary: Summary) -> list[str]:
    """Return the cells of one row of the agreement table: counts by how far they are from the measured ones."""

    def count_and_share(count: int, total: int) -> str:
        return f"{count} ({units.percent(count / total)})" if total else "–"

    outside = summary.total - summary.equal - summary.near - summary.close
    equal_or_near = summary.equal + summary.near
    agreeing = [
        count_and_share(count, summary.total)
        for count in (summary.counted, summary.equal, equal_or_near, equal_or_near + summary.close)
    ]
    return [
        summary.name,
        str(summary.total),
        *agreeing,
        str(outside),
        count_and_share(summary.bounded, summary.total),
        str(summary.cases),
        count_and_share(summary.cases_equal, summary.cases),
    ]


def _comparison_cells(comparison: CountComparison) -> list[str]:
    """Return the cells of one compared count, with notes on bounds and the test set."""
    upper = "–" if comparison.upper is None else str(comparison.upper)
    note = ", ".join(
        text for text, applies in (("in bounds", comparison.bounded), ("test set", comparison.held_out)) if applies
    )
    return [
        comparison.case,
        comparison.quantity,
        str(comparison.counted),
        str(comparison.predicted),
        upper,
        f"{comparison.measured:.0f}",
        units.percent(comparison.error),
        note,
    ]
