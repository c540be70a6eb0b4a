"""The ranking on a terminal, or in a pipe of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opbench import units
from opbench.frame import Row, rows_of_frame
from opbench.report.sections import Section, same_reason, sections

if TYPE_CHECKING:
    import pandas

COLOURS = {"right": "green", "wrong": "red", "failed": "red", "invalid": "magenta", "unsupported": "dim"}


def print_table(table: pandas.DataFrame, console: Console) -> None:
    """Print each operator and problem: ranked rows first, what is not right below them with its reason."""
    found = sections(rows_of_frame(table))
    if not found:
        console.print("no results")
    for section in found:
        console.print()
        console.print(Text.assemble((section.operator, "bold"), section.problem), soft_wrap=True)
        if section.groups:
            console.print(_ranking(section))
        elif section.unmeasured:
            console.print(_untimed(section))
        for rows, reason in same_reason(section.fallen):
            names = ", ".join(row.name for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
            status = rows[0].status
            first = reason.strip().splitlines()[0] if reason.strip() else ""
            console.print(Text.assemble("  ", (status, COLOURS[status]), f"  {names}: {first}"), soft_wrap=True)


def _ranking(section: Section) -> Table:
    """Rank, variant, time, rate, share of the roof and speed-ups; a line between precision classes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("variant", overflow="fold", ratio=1)
    for title in ("median", "rate", "of roof", "× rung", "× lib"):
        table.add_column(title, justify="right", no_wrap=True)
    for group in section.groups:
        for row, rank in group.rows:
            name = row.name if group.precision == "f32" else f"{row.name} {group.precision}"
            mark = " !" if row.warnings else ""
            table.add_row(
                Text(rank),
                Text(name),
                units.time(row.time_s) + mark,
                rate(row),
                units.percent(row.roof_share),
                units.ratio(row.speedup_over_rung),
                units.ratio(row.speedup_over_library),
            )
        table.add_section()
        hidden = len(group.rest) - len(group.rows)
        if hidden > 0:
            table.add_row("", Text(f"({hidden} more configs, slower than their variant's best)", style="dim"))
    return table


def _untimed(section: Section) -> Table:
    """Right cases that have no time."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("variant", overflow="fold", ratio=1)
    for title in ("verdict", "worst error", "allowed"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in section.unmeasured:
        table.add_row(Text(row.name), Text("right", style="green"), error(row.worst_error), error(row.allowed_error))
    return table


def error(value: float | None) -> str:
    """A relative error as printed; "–" when there is none."""
    return "–" if value is None else "0" if value == 0 else f"{value:.1e}"


def rate(row: Row) -> str:
    """FLOP/s where arithmetic limits the problem, else bytes/s."""
    if row.bound == "compute" or (row.bound is None and arithmetic_heavy(row)):
        return units.flop_rate(row.flops_per_s)
    return units.byte_rate(row.bytes_per_s)


def arithmetic_heavy(row: Row) -> bool:
    """Whether a problem has more FLOPs per byte than any GPU's ridge point allows memory to limit."""
    return bool(row.flops and row.compulsory_bytes and row.flops > 30 * row.compulsory_bytes)
