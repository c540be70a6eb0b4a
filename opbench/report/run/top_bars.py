"""The picture at the top of a run's page, as bars: what stands out if no chart compares variants with libraries."""

from __future__ import annotations

from collections.abc import Sequence

from opbench import units
from opbench.insight.levels import LIMIT_NAMES
from opbench.report.bars import Bar, scaled
from opbench.report.charts.libraries import row_labels
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row

MAX_BARS = 12
NEAR_BOUND, FAR_FROM_BOUND = 1.05, 2.0
"""Traffic that costs less than the first multiple of the lower bound is good; beyond the second, the bar warns."""


def winner_bars(all_sections: Sequence[Section]) -> tuple[list[Bar], str]:
    """Return a bar for the fastest variant of each problem, with its percentage of peak, and the caption.

    The variant with the most time above its lower bound comes first.
    """
    winners = [(section, section.winner) for section in all_sections]
    known = [(section, row) for section, row in winners if row and row.peak_share is not None]
    known.sort(key=lambda pair: -(pair[1].time_s or 0.0) * (1 - (pair[1].peak_share or 0.0)))
    if len(known) < 2:
        return [], ""
    labels = row_labels([section for section, _ in known])
    bars = [
        Bar(
            f"{label}: {row.variant}",
            units.time(row.time_s),
            row.peak_share or 0.0,
            f"{units.percent(row.peak_share)} of peak",
            "" if row.library else "fast",
        )
        for label, (_, row) in zip(labels, known, strict=True)
    ]
    caption = (
        "The fastest variant of each problem with its percentage of the measured peak; the most time above the lower "
        f"bound comes first{_omitted(len(bars))}."
    )
    return scaled(bars[:MAX_BARS], 1.0), caption


def traffic_bars(all_sections: Sequence[Section], gpu: str) -> tuple[list[Bar], str]:
    """Return bars for the time that counted traffic needs, as a multiple of the lower bound, and the caption.

    A run of one problem has a bar for each variant; other runs have one for the costliest variant of each problem, of
    the user's variants if there are any. There are none if no traffic costs more than the lower bound.
    """
    candidates = [(section, rows) for section in all_sections if (rows := _rows_with_cost(section))]
    single = len(candidates) == 1
    chosen = [(s, row) for s, rows in candidates for row in (rows if single else [_costliest(rows)])]
    chosen.sort(key=lambda pair: -traffic_cost(pair[1]))
    if len(chosen) < 2 or traffic_cost(chosen[0][1]) < NEAR_BOUND:
        return [], ""
    labels = row_labels([section for section, _ in chosen])
    bars = [
        Bar(
            row.variant if single else f"{label}: {row.variant}",
            units.ratio(traffic_cost(row)),
            traffic_cost(row),
            limit_of_traffic(row),
            "own" if row.own else "fast" if traffic_cost(row) < FAR_FROM_BOUND else "slow",
        )
        for label, (_, row) in zip(labels, chosen, strict=True)
    ]
    which = "each variant" if single else "the costliest variant of each problem"
    caption = (
        f"The time that the counted traffic of {which} needs at the peaks of an {gpu}, as a multiple of the problem's "
        f"lower bound; both without the launch{_omitted(len(bars))}. 1× is ideal."
    )
    return scaled(bars[:MAX_BARS]), caption


def costliest_sentence(all_sections: Sequence[Section]) -> str:
    """Return a sentence on the variant whose traffic costs most, of the user's variants if there are any; "" if none
    costs more than the lower bound.
    """
    rows = [row for section in all_sections for row in _rows_with_cost(section)]
    row = _costliest(rows) if rows else None
    if row is None or traffic_cost(row) < NEAR_BOUND:
        return ""
    cost, limit = units.ratio(traffic_cost(row)), limit_of_traffic(row)
    return f"The counted traffic of `{row.operator}/{row.variant}` needs {cost} the time of its lower bound ({limit})."


def traffic_cost(row: Row) -> float:
    """Return the time that a row's counted traffic needs at peak over the lower bound of its problem; 0 if unknown."""
    predicted, traffic = row.predicted, row.predicted_traffic
    if not predicted or not predicted.without_launch_s or not traffic or not traffic.least_alone:
        return 0.0
    return traffic.least_alone.time_s / predicted.without_launch_s


def limit_of_traffic(row: Row) -> str:
    """Return the name of the limit that sets the time of a row's counted traffic, such as "L2"; "" if ideal."""
    bound = row.predicted_traffic.least_alone if row.predicted_traffic else None
    return LIMIT_NAMES[bound.limit] if bound and bound.limit != "compulsory" else ""


def _rows_with_cost(section: Section) -> list[Row]:
    """Return the first config of each right variant whose cost is known."""
    return [row for row in best_configs(section.unmeasured) if traffic_cost(row)]


def _costliest(rows: Sequence[Row]) -> Row:
    """Return the row with the largest cost, of the user's variants if there are any."""
    return max([row for row in rows if row.own] or rows, key=traffic_cost)


def _omitted(total: int) -> str:
    """Return the end of a caption that names the number of bars shown; "" if all are."""
    return f"; the first {MAX_BARS} of {total}" if total > MAX_BARS else ""
