"""How much faster the fastest variant is than the next one, and which variants tie with it."""

from __future__ import annotations

from opbench import units
from opbench.report.run.sections import Group, best_configs
from opbench.results.rows import Row, is_tie
from opbench.timing import stats


def winners_and_next(group: Group) -> tuple[list[Row], Row | None]:
    """Return the best configs of the variants that share the first rank, and of the next variant, or None."""
    rows = best_configs(row for row, _ in group.rows)
    tied_rows = [row for row in rows if row is rows[0] or is_tie(rows[0], row)]
    return tied_rows, next((row for row in rows if row not in tied_rows), None)


def ratio_over(row: Row, other_row: Row) -> stats.Ratio | None:
    """Return the other row's time divided by this row's, with its 95 % interval; None without an interval."""
    times, other_times = row.times, other_row.times
    if not (times and times.interval_s and other_times and other_times.interval_s):
        return None
    other_interval, interval = stats.Interval(*other_times.interval_s, 0.95), stats.Interval(*times.interval_s, 0.95)
    return stats.interval_ratio(other_times.time_s, other_interval, times.time_s, interval)


def ratio_text(row: Row, other_row: Row) -> str:
    """Return how much longer the other row takes, such as "4.1 % (3.2 to 5.0 %)" or "2.3× (2.1 to 2.5×)".

    "" if unknown.
    """
    ratio = ratio_over(row, other_row)
    if ratio is None:
        return ""
    if ratio.value >= 2:
        low, value_text, high = (units.ratio(value) for value in (ratio.low, ratio.value, ratio.high))
        return f"{value_text} ({low.removesuffix('×')} to {high})"
    low, value_text, high = (
        f"{100 * (value - 1):.{1 if ratio.value < 1.2 else 0}f}" for value in (ratio.low, ratio.value, ratio.high)
    )
    return f"{value_text} % ({low} to {high} %)"
