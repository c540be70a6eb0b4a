"""How much faster the fastest variant is than the next one, and which variants tie with it."""

from __future__ import annotations

from opbench import units
from opbench.report.run.sections import Group, best_configs
from opbench.results.rows import Row, tied
from opbench.timing import stats


def winners_and_next(group: Group) -> tuple[list[Row], Row | None]:
    """Return the best configs of the variants that share the first rank, and of the next variant, or None."""
    rows = best_configs(row for row, _ in group.rows)
    first = [row for row in rows if row is rows[0] or tied(rows[0], row)]
    return first, next((row for row in rows if row not in first), None)


def ratio_over(row: Row, other: Row) -> stats.Ratio | None:
    """Return the other row's time divided by this row's, with its 95 % interval; None without an interval."""
    mine, others = row.times, other.times
    if not (mine and mine.interval_s and others and others.interval_s):
        return None
    over, under = stats.Interval(*others.interval_s, 0.95), stats.Interval(*mine.interval_s, 0.95)
    return stats.interval_ratio(others.time_s, over, mine.time_s, under)


def ratio_text(row: Row, other: Row) -> str:
    """Return how much longer the other row takes, such as "4.1 % (3.2 to 5.0 %)" or "2.3× (2.1 to 2.5×)".

    "" if unknown.
    """
    ratio = ratio_over(row, other)
    if ratio is None:
        return ""
    if ratio.value >= 2:
        low, middle, high = (units.ratio(value) for value in (ratio.low, ratio.value, ratio.high))
        return f"{middle} ({low.removesuffix('×')} to {high})"
    low, middle, high = (
        f"{100 * (value - 1):.{1 if ratio.value < 1.2 else 0}f}" for value in (ratio.low, ratio.value, ratio.high)
    )
    return f"{middle} % ({low} to {high} %)"
