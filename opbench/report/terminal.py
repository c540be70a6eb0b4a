"""Print the ranking to a terminal or a pipe; in a pipe, each case is one line."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from opbench import units
from opbench.report import own_variants
from opbench.report.run import sentences, traffic_columns
from opbench.report.run.predicted_bound import predicted_text
from opbench.report.run.sections import STATUSES, Group, Section, group_by_reason, sections
from opbench.report.run.winner_lead import ratio_text, winners_and_next
from opbench.results.header import SkippedVariants
from opbench.results.own_variants import VariantComparison
from opbench.results.result import Verdict
from opbench.results.rows import Row, Times
from opbench.timing.clock import mode_text
from opbench.timing.measurement import TimingWarning

COLOURS = {"right": "green", "wrong": "red", "failed": "red", "invalid": "magenta", "unsupported": "dim"}

TableLine = tuple[list[str], Row | None]
"""The cells of a line and the row that they show; None for a heading."""


def print_table(
    measured_rows: Sequence[Row],
    console: Console,
    left_out: SkippedVariants = MappingProxyType({}),
    own_comparisons: Sequence[VariantComparison] = (),
) -> None:
    """Print each operator and problem: ranked rows, then rows that are not right, with the reason.

    `own_comparisons` are the comparisons of the user's variants, printed below their problem.
    """
    all_sections = sections(measured_rows)
    if not all_sections:
        console.print(
            "no results: the run ended before its first case; resume it with: opbench run SUITE --out DIR --resume"
        )
        return
    shown_problems = {f"{section.operator}{section.problem}" for section in all_sections}
    for section in all_sections:
        _print_section(section, console)
        for comparison in own_comparisons:
            if (comparison.operator, comparison.problem) == (section.operator, section.problem):
                for sentence in own_variants.sentences(comparison):
                    _line(console, Text("  " + sentence.replace("`", ""), style="bold"))
        _print_skipped_variants("  ", left_out.get(f"{section.operator}{section.problem}", {}), console)
    for problem, reasons in left_out.items():
        if problem not in shown_problems:
            _print_skipped_variants(f"{problem}  ", reasons, console)
    rows = [row for section in all_sections for row in section.rows]
    _line(console, Text())
    for warning, cases in _cases_by_warning(rows).items():
        _line(console, Text(f"! {warning}: {units.count_noun(cases, 'case')}; {_advice(warning)}", style="yellow"))
    if any(row.traffic for row in rows):
        for line in TRAFFIC_LEGEND:
            _line(console, Text(line, style="dim"))
    counts = ", ".join(f"{n} {status}" for status in STATUSES if (n := sum(row.status == status for row in rows)))
    failing = sum(len(section.failures) for section in all_sections)
    style = "bold red" if failing else "bold"
    _line(console, Text(f"{units.count_noun(len(rows), 'case')}: {counts}", style=style))


def _line(console: Console, text: Text) -> None:
    """Print one line; only the terminal itself may wrap it."""
    console.print(text, soft_wrap=True)


def _print_skipped_variants(prefix: str, reasons: Mapping[str, Sequence[str]], console: Console) -> None:
    if sentence := sentences.skipped_variants_sentence(reasons):
        _line(console, Text(prefix + sentence.replace("`", ""), style="dim"))


def _print_section(section: Section, console: Console) -> None:
    supported = len(section.rows) - section.count("unsupported")
    right = section.count("right")
    right_text = f"  {right} of {supported} right" if supported else ""
    predicted = predicted_text(section.rows)
    _line(console, Text())
    _line(
        console,
        Text.assemble(
            (section.operator, "bold"),
            section.problem,
            (right_text, "red" if right < supported else "dim"),
            (f", on {' and '.join(section.devices)}" if section.devices else "", "dim"),
            (f", {predicted}" if predicted else "", "dim"),
            (f", {time_heading(section.rows)}" if section.groups else "", "dim"),
        ),
    )
    for rows, reason in group_by_reason(section.failures):
        _line(console, _failure_text(rows, reason))
    if section.groups:
        _print_columns(console, _ranking(section, console))
    for group in section.groups:
        if lead := _lead(group):
            _line(console, Text(f"    {lead}", style="dim"))
        for sentence in sentences.own_variant_ranks(group):
            _line(console, Text(f"    {sentence.replace('`', '')}", style="bold"))
    for reason_above_peak in above_peak_text(row for group in section.groups for row, _ in group.rest or group.rows):
        _line(console, Text(f"    {reason_above_peak}", style="yellow"))
    if section.unmeasured:
        _print_columns(console, _with_traffic(_untimed(section), console))
    if section.unsupported:
        _line(console, _unsupported(section.unsupported))


def _failure_text(rows: Sequence[Row], reason: str) -> Text:
    """Return the first line of a failure's reason, then the status and the cases.

    For an invalid time, whose reason has no file location, the status and the cases come first.
    """
    names = ", ".join(row.name for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
    first_line = reason.strip().splitlines()[0] if reason.strip() else ""
    if rows[0].status == "invalid":
        return Text.assemble("  ", ("invalid", COLOURS["invalid"]), f"  {names}: {first_line}")
    return Text.assemble(f"{first_line}\n  ", (rows[0].status, COLOURS[rows[0].status]), f"  {names}")


def _unsupported(rows: Sequence[Row]) -> Text:
    """Return one line for a problem's cases that cannot run on this device."""
    names = list(dict.fromkeys(row.variant for row in rows))
    more_text = f" and {len(names) - 4} more" if len(names) > 4 else ""
    reasons = list(dict.fromkeys(row.reason.strip().partition("\n")[0] for row in rows))
    reason_text = reasons[0] + (f"; {len(reasons) - 1} other reasons" if len(reasons) > 1 else "")
    return Text(f"  unsupported  {', '.join(names[:4])}{more_text}: {reason_text}", style="dim")


def above_peak_text(rows: Iterable[Row]) -> list[str]:
    """Return each reason for exceeding peak once, with the row of the highest percentage.

    An example is "fill/vec4: 108 % of peak (peak of a copy)".
    """
    rows_by_reason: dict[str, list[Row]] = {}
    for row in rows:
        if row.above_peak:
            rows_by_reason.setdefault(row.above_peak, []).append(row)
    texts = []
    for reason, rows_above in rows_by_reason.items():
        highest = max(rows_above, key=lambda row: row.peak_share or 0.0)
        others_text = f" and {len(rows_above) - 1} more" if len(rows_above) > 1 else ""
        texts.append(f"{highest.name}{others_text}: {units.percent(highest.peak_share)} of peak ({reason})")
    return texts


HIDDEN_FIRST = ("kernel", "rate", "vs prev", "vs lib")
"""Columns hidden on a narrow terminal, in the order in which they are hidden."""


def _ranking(section: Section, console: Console) -> list[TableLine]:
    """Return the ranking of all precision classes, with as many columns as fit the terminal."""
    rows = [row for group in section.groups for row, _ in group.rows]
    hidden = set() if any(row.times and row.times.kernel_s is not None for row in rows) else {"kernel"}
    hidden |= {"vs lib"} if all(row.speedups.over_library is None for row in rows) else set()
    for name in ("", *HIDDEN_FIRST):
        hidden.add(name)
        lines = _ranking_without(section, hidden)
        if not console.is_terminal or _width(lines) <= console.width:
            break
    return lines


def _ranking_without(section: Section, hidden: Collection[str]) -> list[TableLine]:
    """Return the ranking of all precision classes without some columns."""
    lines: list[TableLine] = []
    for group in section.groups:
        for row, rank in group.rows:
            times = row.times
            assert times is not None, "ranked rows have times"
            cells = {
                "": rank,
                "variant": row.variant if group.precision == "f32" else f"{row.variant} ({group.precision})",
                "GPU time": units.time(times.time_s),
                "!": "!" if row.warnings else "",
                "± 95 %": half_width(times),
                "n": str(times.samples or "–"),
                "kernel": units.time(times.kernel_s),
                "rate": rate_text(row),
                "of peak": units.percent(row.peak_share),
                "^": "^" if row.above_peak else "",
                "vs prev": units.ratio(row.speedups.over_previous),
                "vs lib": units.ratio(row.speedups.over_library),
            }
            visible_cells = {name: cell for name, cell in cells.items() if name not in hidden or not name}
            if not lines:
                lines.append(([name.strip("!^") for name in visible_cells], None))
            lines.append((list(visible_cells.values()), row))
        if (hidden_configs := len(group.rest) - len(group.rows)) > 0:
            lines.append((["", f"({hidden_configs} more configs, slower than their variant's best)"], None))
    return lines


def half_width(times: Times) -> str:
    """Return half the width of the 95 % interval relative to the median, such as "0.4 %"; "–" if unknown.

    The further end of the interval counts.
    """
    if times.interval_s is None:
        return "–"
    low, high = times.interval_s
    share = max(high - times.time_s, times.time_s - low) / times.time_s
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{100 * share:.2g} %"


def _lead(group: Group) -> str:
    """Return a phrase on the lead of the fastest variant, or on the variants that tie; "" if unknown."""
    tied_rows, runner_up = winners_and_next(group)
    if len(tied_rows) > 1:
        more_text = f" and {len(tied_rows) - 4} more" if len(tied_rows) > 4 else ""
        return f"tie: {', '.join(row.variant for row in tied_rows[:4])}{more_text}"
    lead = ratio_text(tied_rows[0], runner_up) if runner_up else ""
    return f"{tied_rows[0].variant} wins by {lead} over {runner_up.variant}" if runner_up and lead else ""


def time_heading(rows: Iterable[Row]) -> str:
    """Return the heading of the times with their condition, such as "GPU time, cold L2"."""
    modes = sorted({row.times.mode for row in rows if row.times} - {""})
    return ", ".join(["GPU time", *([" or ".join(map(mode_text, modes))] if modes else [])])


def _untimed(section: Section) -> list[TableLine]:
    """Return the heading and rows of a problem's right cases that have no time."""
    lines: list[TableLine] = [(["", "variant", "verdict", "worst error", "allowed"], None)]
    for row in section.unmeasured:
        lines.append((["", row.variant, "right", *error_texts(row.verdict)], row))
    return lines


TRAFFIC_HEADS = ["sect/load", "store", "confl"]
TRAFFIC_LEGEND = (
    "sect: 32-byte sectors per request, moved/ideal; !: see opbench explain",
    "confl: share of wavefronts that are bank conflicts",
)
NARROW, WIDE = 80, 100
"""Terminal widths: traffic is shown if it fits into NARROW columns, or from WIDE columns on."""


def _with_traffic(lines: list[TableLine], console: Console) -> list[TableLine]:
    """Add sectors per request and the share of bank conflicts to the lines, if counted and if they fit."""
    if not any(row is not None and row.traffic for _, row in lines):
        return lines
    with_traffic = [(cells + (_traffic(row) if row is not None else TRAFFIC_HEADS), row) for cells, row in lines]
    fits = _width(with_traffic) <= min(console.width, NARROW) or console.width >= max(WIDE, _width(with_traffic))
    return with_traffic if fits or not console.is_terminal else lines


def _traffic(row: Row) -> list[str]:
    """Return sectors per load and per store request as actual/ideal, and bank conflicts; "!" marks a bad value."""
    figures = traffic_columns.figures(row)
    cells = []
    for key in ("load", "store", "conflicts"):
        ideal = figures[key].below.replace("of ", "/") if key != "conflicts" else ""
        cells.append(f"{traffic_columns.BAD_MARK if figures[key].bad else ''}{figures[key].text}{ideal}")
    return cells


def _width(lines: Sequence[TableLine]) -> int:
    """Return the total width of the columns, without the configs."""
    return len(_join_cells([" " * width for width in _widths(lines)]))


def _widths(lines: Sequence[TableLine]) -> list[int]:
    return [max(map(len, column)) for column in zip(*(cells for cells, _ in lines if len(cells) > 2), strict=True)]


def _print_columns(console: Console, lines: Sequence[TableLine]) -> None:
    """Print aligned columns; the config ends its line, or is below it on a narrow terminal."""
    widths = _widths(lines)
    configs = [config_text(row) for _, row in lines if row is not None]
    config_on_line = not console.is_terminal or sum(widths) + 2 * len(widths) + max(map(len, configs)) <= console.width
    for cells, row in lines:
        padded_cells = [
            f"{c:<{w}}" if i == 1 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=False))
        ]
        config = config_text(row) if row is not None else ""
        text = Text(_join_cells(padded_cells) + (f"  {config}" if config and config_on_line else ""))
        if row is None:
            text.stylize("dim")
        elif config and config_on_line:
            text.stylize("dim", len(text) - len(config))
        text.highlight_regex(r"!\d\S*( %)?", "red")
        text.rstrip()
        _line(console, text)
        if config and not config_on_line:
            _line(console, Text(" " * (widths[0] + 4) + config, style="dim"))


def _join_cells(cells: Sequence[str]) -> str:
    """Join cells with two blanks; a mark of one character such as "!" follows after one blank."""
    return "".join(("" if i == 0 else " " if len(cell) < 2 else "  ") + cell for i, cell in enumerate(cells))


def config_text(row: Row) -> str:
    """Format a config without brackets, such as "BLOCK=256 UNROLL=4"."""
    return row.config.strip("[]").replace(",", " ")


def _cases_by_warning(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of cases that have each warning."""
    names = sorted(itertools.chain.from_iterable(row.warnings for row in rows))
    return {name: len(list(group)) for name, group in itertools.groupby(names)}


def _advice(warning: str) -> str:
    try:
        return TimingWarning(warning).advice
    except ValueError:
        return "see the report"


def error_texts(verdict: Verdict | None) -> tuple[str, str]:
    """Format the worst and the allowed relative error of a verdict."""
    return (
        (error_text(verdict.worst_error), error_text(verdict.allowed_error))
        if verdict
        else (error_text(None), error_text(None))
    )


def error_text(value: float | None) -> str:
    """Format a relative error; "–" for None."""
    return "–" if value is None else "0" if value == 0 else f"{value:.1e}"


def rate_text(row: Row) -> str:
    """Format the rate of a row: FLOP/s if arithmetic limits the problem, else bytes/s."""
    if is_limited_by_arithmetic(row):
        return units.flop_rate(row.times.flops_per_s if row.times else None)
    return units.byte_rate(row.times.bytes_per_s if row.times else None)


def is_limited_by_arithmetic(row: Row) -> bool:
    """Return whether arithmetic limits the problem; False if unknown."""
    return row.bound == "compute" or (row.bound is None and has_high_intensity(row))


def has_high_intensity(row: Row) -> bool:
    """Return whether a problem has more FLOPs per byte than the ridge point of any GPU model."""
    return bool(row.flops and row.compulsory_bytes and row.flops > 30 * row.compulsory_bytes)
