"""Table columns for a cpu run without times: compiled resources and counted traffic, with bad values marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opbench import units
from opbench.insight.diagnosis import CONFLICT_SHARE, UNCOALESCED_RATIO
from opbench.insight.levels import LIMIT_NAMES
from opbench.report.run.sections import best_configs
from opbench.results.rows import CompiledResources, PredictedTraffic, Row

MAX_COLLISION_SHARE = 0.25
"""Share of colliding lanes of an atomic from which a finding is reported."""
MAX_NAMED = 3
"""Most variants named under one fault; for more, only their number is shown."""
BAD_MARK = "!"


@dataclass(frozen=True)
class CountedFigure:
    """One table cell: its text, a second line, the reason if its value is bad, and the number to sort by."""

    text: str = "–"
    below: str = ""
    bad: str = ""
    """Why the value is bad; empty for a good value."""
    value: float | None = None

    @property
    def sort(self) -> str:
        """Return the number to sort by as text; "" when missing."""
        return "" if self.value is None else f"{self.value:.6g}"


def sectors_over_ideal(row: Row, access: str) -> float | None:
    """Return the number of sectors of global loads or stores over the ideal number; None without counts.

    1 is ideal; below 1, lanes share addresses.
    """
    counted, ideal = sectors(row, access)
    return counted / ideal if counted is not None and ideal else None


def sectors(row: Row, access: str) -> tuple[float | None, float | None]:
    """Return the sectors per request of loads or stores, and the ideal sectors per request."""
    traffic = row.traffic
    if traffic is None:
        return None, None
    if access == "load":
        return traffic.sectors_per_load, traffic.ideal_sectors_per_load
    return traffic.sectors_per_store, traffic.ideal_sectors_per_store


def has_excess_sectors(row: Row, access: str) -> bool:
    """Return whether loads or stores need many more sectors than ideal.

    One more sector per request may come from misalignment and does not count.
    """
    counted, ideal = sectors(row, access)
    return counted is not None and ideal is not None and counted > UNCOALESCED_RATIO * ideal and counted > ideal + 1


def has_bank_conflicts(row: Row) -> bool:
    """Return whether bank conflicts are frequent enough to report."""
    return (conflict_share(row) or 0.0) >= CONFLICT_SHARE


def has_atomic_collisions(row: Row) -> bool:
    """Return whether lanes of one atomic instruction often update the same address."""
    return (collision_share(row) or 0.0) >= MAX_COLLISION_SHARE


def conflict_share(row: Row) -> float | None:
    """Return the share of wavefronts that bank conflicts cause; None without shared memory or counts."""
    return row.traffic.bank_conflict_share if row.traffic else None


def collision_share(row: Row) -> float | None:
    """Return the share of atomic lanes that update the same address as another lane; None without atomics or counts."""
    return row.traffic.atomic_collision_share if row.traffic else None


# Cells ------------------------------------------------------------------------------------------------------------


def figures(row: Row) -> dict[str, CountedFigure]:
    """Return the cells of a case's row, by column: compiled resources and counted traffic."""
    predicted = row.predicted_traffic
    return {
        "registers": _registers_cell(row.resources),
        "occupancy": _occupancy_cell(row.resources),
        "load": _sectors_cell(row, "load"),
        "store": _sectors_cell(row, "store"),
        "moved": _moved_bytes_cell(row),
        "conflicts": _share_cell(conflict_share(row), has_bank_conflicts(row), "bank conflicts", "of wavefronts"),
        "atomics": _share_cell(
            collision_share(row), has_atomic_collisions(row), "lanes of a warp update one address", "of lanes"
        ),
        "l2": _level_cell(predicted.l2_bytes, row) if predicted else CountedFigure(),
        "dram": _level_cell(predicted.dram_bytes, row) if predicted else CountedFigure(),
        "least": _lower_bound_cell(predicted) if predicted else CountedFigure(),
        "barriers": _barriers_cell(row.traffic.barriers_per_block if row.traffic else None),
    }


COMPILED = ("registers", "occupancy")
TRAFFIC = ("load", "store", "moved", "conflicts", "atomics", "barriers", "least", "l2", "dram")
HEADS = {
    "registers": ("registers", "a thread, compiled"),
    "occupancy": ("occupancy", "compiled"),
    "load": ("sectors per load", "counted, of ideal"),
    "store": ("sectors per store", "counted, of ideal"),
    "moved": ("moved\u00a0÷ asked", "global bytes"),
    "conflicts": ("bank conflicts", "of wavefronts"),
    "atomics": ("collisions", "of atomics’ lanes"),
    "barriers": ("barriers", "a block"),
    "l2": ("L2 bytes", "predicted"),
    "dram": ("DRAM bytes", "predicted"),
    "least": ("lower bound", "by which limit"),
}


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns to show for these rows: those with a value in at least one row."""
    compiled, traffic = any(row.resources for row in rows), any(row.traffic for row in rows)
    names = [*(TRAFFIC if traffic else ()), *(COMPILED if compiled else ())]
    absent = {
        "conflicts": all(conflict_share(row) is None for row in rows),
        "atomics": all(collision_share(row) is None for row in rows),
        **dict.fromkeys(("l2", "dram", "least"), not any(row.predicted_traffic for row in rows)),
    }
    return [name for name in names if not absent.get(name, False)]


def split_columns(
    names: Sequence[str], rows: Sequence[Mapping[str, CountedFigure]]
) -> tuple[list[str], dict[str, CountedFigure]]:
    """Return the columns in which rows differ, and the common value of each other column.

    A single row keeps every column with a value. A column without any value is in neither.
    """
    with_value = [name for name in names if any(row[name] != CountedFigure() for row in rows)]
    if len(rows) < 2:
        return with_value, {}
    constant = {name: rows[0][name] for name in with_value if all(row[name] == rows[0][name] for row in rows)}
    return [name for name in with_value if name not in constant], constant


def sort_by_traffic(rows: Sequence[Row]) -> list[Row]:
    """Sort the rows of the user's own files first, then by global bytes moved and by bank conflicts."""

    def moved(row: Row) -> float:
        return (row.traffic.moved_bytes if row.traffic else 0) or math.inf

    return sorted(rows, key=lambda row: (not row.own, moved(row), conflict_share(row) or 0.0))


def _barriers_cell(value: float | None) -> CountedFigure:
    if value is None:
        return CountedFigure()
    return CountedFigure(f"{value:.0f}" if value == int(value) else f"{value:.1f}", value=value)


def _registers_cell(resources: CompiledResources | None) -> CountedFigure:
    if resources is None:
        return CountedFigure()
    second_line, fault = "no spills" if resources.spill_bytes == 0 else "", ""
    if resources.spill_bytes:
        second_line, fault = f"{resources.spill_bytes} B spilled", "registers spill to local memory"
    elif resources.local_bytes:
        second_line, fault = f"{resources.local_bytes} B local", "an array is in local memory"
    return CountedFigure(str(resources.registers), second_line, fault, resources.registers)


def _occupancy_cell(resources: CompiledResources | None) -> CountedFigure:
    if resources is None:
        return CountedFigure()
    limited_by = f"limited by {resources.limiter}" if resources.limiter else ""
    return CountedFigure(units.percent(resources.occupancy), limited_by, "", resources.occupancy)


def _sectors_cell(row: Row, access: str) -> CountedFigure:
    counted, ideal = sectors(row, access)
    if counted is None or ideal is None:
        return CountedFigure()
    fault = (
        f"{access}s touch {units.ratio(sectors_over_ideal(row, access))} the ideal sectors"
        if has_excess_sectors(row, access)
        else ""
    )
    return CountedFigure(f"{counted:.1f}", f"of {ideal:.1f}", fault, counted)


def _moved_bytes_cell(row: Row) -> CountedFigure:
    traffic = row.traffic
    if traffic is None or not traffic.asked_bytes:
        return CountedFigure()
    ratio = traffic.moved_bytes / traffic.asked_bytes
    fault = (
        "many bytes of the moved sectors are never used"
        if ratio > UNCOALESCED_RATIO and any(_uncoalesced_kinds(row))
        else ""
    )
    moved_bytes, asked_bytes = (
        units.si(size, "B").replace(" ", "\N{NO-BREAK SPACE}") for size in (traffic.moved_bytes, traffic.asked_bytes)
    )
    second_line = f"{moved_bytes}\u00a0÷ {asked_bytes}"
    return CountedFigure(units.ratio(ratio), second_line, fault, ratio)


def _share_cell(share: float | None, is_bad: bool, explanation: str, whole_name: str) -> CountedFigure:
    if share is None:
        return CountedFigure()
    text = "0" if share == 0 else units.percent(share)
    return CountedFigure(text, "", f"{text} {whole_name}: {explanation}" if is_bad else "", share)


def _lower_bound_cell(predicted: PredictedTraffic) -> CountedFigure:
    """Return the lower bound and its limit; for a launch limit, also the time of the next limit."""
    bound, next_bound = predicted.least, predicted.least_alone
    if bound is None:
        return CountedFigure()
    limit_name = LIMIT_NAMES[bound.limit]
    if bound.limit == "launch" and next_bound:
        limit_name += f"; {LIMIT_NAMES[next_bound.limit]} alone {units.time(next_bound.time_s)}"
    # Cases limited by the launch have equal bounds; their next limit orders them.
    return CountedFigure(
        units.time(bound.time_s), limit_name, value=bound.time_s + (next_bound.time_s if next_bound else 0.0)
    )


def _level_cell(nbytes: int, row: Row) -> CountedFigure:
    """Return the bytes at one memory level and the arithmetic intensity there."""
    intensity_text = units.per_byte(row.flops / nbytes) if row.flops and nbytes else ""
    return CountedFigure(units.si(nbytes, "B").replace(" ", "\N{NO-BREAK SPACE}"), intensity_text, value=nbytes)


def provenance(rows: Sequence[Row], missing: Iterable[str]) -> str:
    """Return the origin of the columns for the table's caption; `missing` is why resources are unknown."""
    entries = []
    compilers = join_distinct(row.resources.source for row in rows if row.resources)
    if compilers:
        entries.append(f"registers and occupancy: {compilers}")
    elif reasons := join_distinct(missing):
        entries.append(f"registers unknown: {reasons}")
    if counted := join_distinct(row.traffic.source for row in rows if row.traffic):
        entries.append(f"traffic: {counted} on the cpu backend, per request of a warp")
    if any(row.predicted_traffic for row in rows):
        entries.append("bytes at L2 and DRAM: predicted, from cold caches")
    if any(figure.bad for row in rows for figure in figures(row).values()):
        entries.append(f"{BAD_MARK} marks bad values")
    return "; ".join(entries)


def join_distinct(texts: Iterable[str | None]) -> str:
    """Join the distinct, non-empty words with " or "."""
    return " or ".join(dict.fromkeys(word for word in texts if word))


# Sentences --------------------------------------------------------------------------------------------------------


def worst_sectors(rows: Sequence[Row]) -> CountedFigure:
    """Return the variant with the largest number of sectors over ideal, and that ratio."""
    return _worst(
        (sectors_over_ideal(row, access) or 0.0, row, access) for row in rows for access in _uncoalesced_kinds(row)
    )


def worst_conflicts(rows: Sequence[Row]) -> CountedFigure:
    """Return the variant with the largest share of bank conflicts, and that share."""
    return _worst((conflict_share(row) or 0.0, row, "") for row in rows if has_bank_conflicts(row))


def _worst(candidates: Iterable[tuple[float, Row, str]]) -> CountedFigure:
    value, row, access = max(candidates, key=lambda item: item[0], default=(0.0, None, ""))
    if row is None:
        return CountedFigure("none", value=0.0)
    text = units.ratio(value) if access else units.percent(value)
    subject = f"{access}s of {row.variant}" if access else row.variant
    return CountedFigure(
        text, subject, f"{subject}: {text} {'the ideal sectors' if access else 'of wavefronts'}", value
    )


def traffic_sentence(rows: Sequence[Row]) -> str:
    """Return one sentence on the traffic of a problem's variants; "" without counts."""
    counted = [row for row in best_configs(rows) if row.traffic]
    if not counted:
        return ""
    faults = [*_uncoalesced(counted), *_conflicts(counted), *_collisions(counted)]
    faulty = {
        row.variant
        for row in counted
        if any((*_uncoalesced_kinds(row), has_bank_conflicts(row), has_atomic_collisions(row)))
    }
    without_fault = [f"`{_without_backticks(row.variant)}`" for row in counted if row.variant not in faulty]
    label = join_distinct(row.traffic.source for row in counted if row.traffic).capitalize()
    if not faults:
        variants_text = "every variant's" if len(counted) > 1 else f"`{_without_backticks(counted[0].variant)}`'s"
        no_conflict_text = " and nothing conflicts" if any(conflict_share(row) is not None for row in counted) else ""
        return f"{label}: {variants_text} loads and stores are coalesced{no_conflict_text}."
    clean_text = (
        f"; {_first_phrases(without_fault)} {'has' if len(without_fault) == 1 else 'have'} no such access"
        if without_fault
        else ""
    )
    return f"{label}: {'; '.join(faults)}{clean_text}."


def _without_backticks(text: str) -> str:
    return text.replace("`", "'")


def _uncoalesced_kinds(row: Row) -> list[str]:
    return [access for access in ("load", "store") if has_excess_sectors(row, access)]


def _first_phrases(phrases: Sequence[str]) -> str:
    """Return the first few phrases joined, and the number of phrases that were left out."""
    if len(phrases) > MAX_NAMED:
        return f"{', '.join(phrases[:MAX_NAMED])} and {len(phrases) - MAX_NAMED} more"
    return units.join_words(phrases)


def _uncoalesced(rows: Sequence[Row]) -> list[str]:
    """Return a phrase such as "uncoalesced accesses move more sectors …: stores of `naive` (8.00×)"."""
    worst_by_variant: dict[str, tuple[float, str]] = {}
    for row in rows:
        for access in _uncoalesced_kinds(row):
            ratio_and_kind = (sectors_over_ideal(row, access) or 0.0, access)
            worst_by_variant[row.variant] = max(worst_by_variant.get(row.variant, ratio_and_kind), ratio_and_kind)
    if not worst_by_variant:
        return []
    ordered = sorted(worst_by_variant.items(), key=lambda item: (-item[1][0], item[0]))
    phrases = [f"{access}s of `{_without_backticks(name)}` ({units.ratio(ratio)})" for name, (ratio, access) in ordered]
    return [f"uncoalesced accesses move more sectors than their bytes need: {_first_phrases(phrases)}"]


def _conflicts(rows: Sequence[Row]) -> list[str]:
    phrases = _share_phrases(filter(has_bank_conflicts, rows), conflict_share, "wavefronts")
    return [f"bank conflicts in {phrases}"] if phrases else []


def _collisions(rows: Sequence[Row]) -> list[str]:
    phrases = _share_phrases(filter(has_atomic_collisions, rows), collision_share, "lanes")
    return [f"atomics collide in {phrases}"] if phrases else []


def _share_phrases(rows: Iterable[Row], share_of: Callable[[Row], float | None], noun: str) -> str:
    """Return a phrase such as "`naive` (50 % of lanes) and `tiled` (10 % of lanes)", the largest share first."""
    ordered = sorted(rows, key=lambda row: -(share_of(row) or 0.0))
    phrases = [f"`{_without_backticks(row.variant)}` ({units.percent(share_of(row))} of {noun})" for row in ordered]
    return _first_phrases(phrases) if phrases else ""
