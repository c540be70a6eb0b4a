"""The ranking on a terminal, or in a pipe, where each case is one line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from opbench import units
from opbench.report.run import counted, sentences
from opbench.report.run.lead import by_how_much, first_and_next
from opbench.report.run.sections import STATUSES, Group, Section, same_reason, sections
from opbench.results.rows import Row, rows_of_frame
from opbench.timing.sampling import Warn

if TYPE_CHECKING:
    import pandas

COLOURS = {"right": "green", "wrong": "red", "failed": "red", "invalid": "magenta", "unsupported": "dim"}

Line = tuple[list[str], Row | None]
"""Cells and the row that they show; None for a heading."""


LeftOut = Mapping[str, Mapping[str, Sequence[str]]]
"""By problem and by reason, the variants that are no cases of it; see `opbench.results.Run.left_out`."""


def print_table(table: pandas.DataFrame, console: Console, left_out: LeftOut = MappingProxyType({})) -> None:
    """Print each operator and problem: ranked rows first, what is not right below them with its reason."""
    found = sections(rows_of_frame(table))
    if not found:
        console.print("no results")
        return
    met = {f"{section.operator}{section.problem}" for section in found}
    for section in found:
        _print_section(section, console)
        _print_left_out("  ", left_out.get(f"{section.operator}{section.problem}", {}), console)
    for problem in left_out.keys() - met:
        _print_left_out(f"{problem}  ", left_out[problem], console)
    rows = [row for section in found for row in section.rows]
    _line(console, Text())
    for warning, cases in _warned(rows).items():
        _line(console, Text(f"! {warning}: {cases} case{'s' if cases > 1 else ''}; {_advice(warning)}", style="yellow"))
    counts = ", ".join(f"{n} {status}" for status in STATUSES if (n := sum(row.status == status for row in rows)))
    _line(console, Text(f"{len(rows)} case{'s' if len(rows) > 1 else ''}: {counts}", style="bold"))


def _line(console: Console, text: Text) -> None:
    """One line, which only the terminal itself may wrap."""
    console.print(text, soft_wrap=True)


def _print_left_out(start: str, reasons: Mapping[str, Sequence[str]], console: Console) -> None:
    if said := sentences.left_out(reasons):
        _line(console, Text(start + said.replace("`", ""), style="dim"))


def _print_section(section: Section, console: Console) -> None:
    able = len(section.rows) - section.count("unsupported")
    facts = f"  {section.count('right')} of {able} right" if able else ""
    predicted = next((row.predicted_best_s for row in section.rows if row.predicted_best_s is not None), None)
    facts += f", predicted {units.time(predicted)} at best" if predicted is not None else ""
    _line(console, Text())
    _line(console, Text.assemble((section.operator, "bold"), section.problem, (facts, "dim")))
    if section.groups:
        _print_columns(console, _ranking(section, console))
    for group in section.groups:
        if said := _lead(group):
            _line(console, Text(f"    {said}", style="dim"))
    if section.unmeasured:
        _print_columns(console, _with_traffic(_untimed(section), console))
    for rows, reason in same_reason(section.fallen):
        names = ", ".join(row.name for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
        status = rows[0].status
        first = reason.strip().splitlines()[0] if reason.strip() else ""
        _line(console, Text.assemble("  ", (status, COLOURS[status]), f"  {names}: {first}"))


def _ranking(section: Section, console: Console) -> list[Line]:
    """The ranking, with the kernels' own times beside the spans where they are known and fit."""
    with_kernel = _ranking_of(section, any(row.kernel_s is not None for g in section.groups for row, _ in g.rows))
    if not console.is_terminal or _width(with_kernel) <= console.width:
        return with_kernel
    return _ranking_of(section, kernel=False)


def _ranking_of(section: Section, kernel: bool) -> list[Line]:
    """Rank, variant, span, rate, share of the roof and speed-ups, one precision class after the other."""
    own_time = ["kernel"] if kernel else []
    span = span_words(row for group in section.groups for row, _ in group.rows)
    lines: list[Line] = [(["", "variant", span, "", *own_time, "rate", "of roof", "× rung", "× lib"], None)]
    for group in section.groups:
        for row, rank in group.rows:
            cells = [
                rank,
                row.variant if group.precision == "f32" else f"{row.variant} ({group.precision})",
                units.time(row.time_s),
                "!" if row.warnings else "",
                *([units.time(row.kernel_s)] if kernel else []),
                rate(row),
                units.percent(row.roof_share),
                units.ratio(row.speedup_over_rung),
                units.ratio(row.speedup_over_library),
            ]
            lines.append((cells, row))
        if (hidden := len(group.rest) - len(group.rows)) > 0:
            lines.append((["", f"({hidden} more configs, slower than their variant's best)"], None))
    return lines


def _lead(group: Group) -> str:
    """By how much the first variant wins, or who cannot be told apart."""
    first, runner_up = first_and_next(group)
    if len(first) > 1:
        more = f" and {len(first) - 4} more" if len(first) > 4 else ""
        return f"cannot be told apart: {', '.join(row.variant for row in first[:4])}{more}"
    lead = by_how_much(first[0], runner_up) if runner_up else ""
    return f"{first[0].variant} wins by {lead} over {runner_up.variant}" if runner_up and lead else ""


def span_words(rows: Iterable[Row]) -> str:
    """What a column of spans is called, such as "cold span"."""
    modes = sorted({row.mode or "" for row in rows} - {""})
    return f"{'/'.join(modes)} span".strip()


def _untimed(section: Section) -> list[Line]:
    """Right cases that have no time."""
    lines: list[Line] = [(["", "variant", "verdict", "worst error", "allowed"], None)]
    for row in section.unmeasured:
        lines.append((["", row.variant, "right", error(row.worst_error), error(row.allowed_error)], row))
    return lines


NARROW, WIDE = 80, 100
"""Columns of a terminal: traffic that does not fit the first is shown from the second on."""


def _with_traffic(lines: list[Line], console: Console) -> list[Line]:
    """The lines with sectors per request and the share of bank conflicts at their end, if counted and if they fit."""
    if not any(row is not None and row.traffic_source for _, row in lines):
        return lines
    wider = [
        (cells + (_traffic(row) if row is not None else ["sect/req ld", "st", "confl"]), row) for cells, row in lines
    ]
    fits = _width(wider) <= min(console.width, NARROW) or console.width >= max(WIDE, _width(wider))
    return wider if fits or not console.is_terminal else lines


def _traffic(row: Row) -> list[str]:
    """Sectors per load and store and the share of bank conflicts; "!" before what is bad."""
    found = counted.figures(row)
    return [f"{counted.FLAG if found[key].bad else ''}{found[key].text}" for key in ("load", "store", "conflicts")]


def _width(lines: Sequence[Line]) -> int:
    """Of the columns without the configs."""
    return len(_joined([" " * width for width in _widths(lines)]))


def _widths(lines: Sequence[Line]) -> list[int]:
    return [max(map(len, column)) for column in zip(*(cells for cells, _ in lines if len(cells) > 2), strict=True)]


def _print_columns(console: Console, lines: Sequence[Line]) -> None:
    """Aligned columns; the config at the end of its line, or below it when the terminal is too narrow."""
    widths = _widths(lines)
    configs = [config_words(row) for _, row in lines if row is not None]
    beside = not console.is_terminal or sum(widths) + 2 * len(widths) + max(map(len, configs)) <= console.width
    for cells, row in lines:
        padded = [f"{c:<{w}}" if i == 1 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=False))]
        config = config_words(row) if row is not None else ""
        text = Text(_joined(padded) + (f"  {config}" if config and beside else ""))
        if row is None:
            text.stylize("dim")
        elif config and beside:
            text.stylize("dim", len(text) - len(config))
        text.highlight_regex(r"!\d\S*( %)?", "red")
        text.rstrip()
        _line(console, text)
        if config and not beside:
            _line(console, Text(" " * (widths[0] + 4) + config, style="dim"))


def _joined(cells: Sequence[str]) -> str:
    """Cells two blanks apart; a mark such as "!" stands close to its number."""
    return "".join(("" if i == 0 else " " if len(cell) < 2 else "  ") + cell for i, cell in enumerate(cells))


def config_words(row: Row) -> str:
    """A config as words, such as "BLOCK=256 UNROLL=4"."""
    return row.config.strip("[]").replace(",", " ")


def _warned(rows: Sequence[Row]) -> dict[str, int]:
    """How many cases carry each warning, by name."""
    names = sorted(itertools.chain.from_iterable(row.warnings for row in rows))
    return {name: len(list(group)) for name, group in itertools.groupby(names)}


def _advice(warning: str) -> str:
    try:
        return Warn(warning).advice
    except ValueError:
        return "see the report"


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
