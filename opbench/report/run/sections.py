"""The sections of a report: one per operator and problem, with its rows in display order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opbench.results.rows import Row, ranked_rows

SHOWN_CONFIGS = 12
"""With more configs than this, a table shows only each variant's best; the rest are folded."""

STATUSES = ("right", "wrong", "failed", "invalid", "unsupported")

STATUS_ORDER = ("invalid", "wrong", "failed", "unsupported")


@dataclass
class Group:
    """The ranked rows of one precision class."""

    precision: str
    rows: list[tuple[Row, str]]
    rest: list[tuple[Row, str]] = field(default_factory=list)
    """Every config by rank; empty unless `rows` has only each variant's best."""


@dataclass
class Section:
    """The results of one problem: ranked rows by precision class, and rows without a time or not right."""

    operator: str
    problem: str
    rows: list[Row]
    groups: list[Group]
    unmeasured: list[Row]
    """Rows that are right but have no time."""
    unsuccessful: list[Row]
    """Rows that are not right."""

    @property
    def winner(self) -> Row | None:
        """Return the fastest right row in the first precision class; None without times."""
        return self.groups[0].rows[0][0] if self.groups else None

    @property
    def best_own(self) -> Row | None:
        """Return the fastest right row in the first precision class that is not a library; None without one."""
        return next((row for row, _ in self.groups[0].rows if not row.library), None) if self.groups else None

    @property
    def subject(self) -> Row | None:
        """Return the row to advise on: the user's fastest or, without one, the fastest that is not a library."""
        return next((row for group in self.groups for row, _ in group.rows if row.own), None) or self.best_own

    @property
    def failures(self) -> list[Row]:
        """Return the rows that ran and are not right."""
        return [row for row in self.unsuccessful if row.status != "unsupported"]

    @property
    def unsupported(self) -> list[Row]:
        """Return the rows that could not run on this device; they are not failures."""
        return [row for row in self.unsuccessful if row.status == "unsupported"]

    @property
    def moves_data_only(self) -> bool:
        """Return whether the operator only copies data, without FLOPs."""
        return not any(row.flops for row in self.rows)

    @property
    def devices(self) -> list[str]:
        """Return the devices on which the rows ran."""
        return sorted({row.device for row in self.rows} - {""})

    def count(self, status: str) -> int:
        """Return the number of cases of this problem with a status, such as "right"."""
        return sum(row.status == status for row in self.rows)


def own_and_library(section: Section) -> tuple[Row, Row] | None:
    """Return the best own variant and the fastest library in a problem's first precision class; None without both."""
    ranked = [row for row, _ in section.groups[0].rest or section.groups[0].rows] if section.groups else []
    library = next((row for row in ranked if row.library), None)
    return (section.best_own, library) if section.best_own is not None and library is not None else None


def sections(rows: Sequence[Row]) -> list[Section]:
    """Return one section per operator and problem, in the run's order, problems of one operator together."""
    keys: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        keys.setdefault((row.operator, row.problem), []).append(row)
    operators = list(dict.fromkeys(operator for operator, _ in keys))
    ordered = sorted(keys, key=lambda key: operators.index(key[0]))
    return [_section(*key, keys[key]) for key in ordered]


def _section(operator: str, problem: str, rows: list[Row]) -> Section:
    precisions = sorted({row.precision for row in rows if row.ranked}, key=lambda p: (p != "f32", p))
    groups = [_group(precision, [r for r in rows if r.precision == precision]) for precision in precisions]
    unmeasured = [row for row in rows if row.status == "right" and not row.ranked]
    unsuccessful = sorted((r for r in rows if r.status != "right"), key=lambda r: STATUS_ORDER.index(r.status))
    return Section(operator, problem, rows, groups, unmeasured, unsuccessful)


def _group(precision: str, rows: list[Row]) -> Group:
    ranked = ranked_rows(rows)
    if len(ranked) <= SHOWN_CONFIGS:
        return Group(precision, ranked)
    return Group(precision, ranked_rows(best_configs(row for row, _ in ranked)), ranked)


def best_configs(rows: Iterable[Row]) -> list[Row]:
    """Return the best config of each variant: its first row."""
    best: dict[str, Row] = {}
    for row in rows:
        best.setdefault(row.variant, row)
    return list(best.values())


def group_by_reason(rows: Sequence[Row]) -> list[tuple[list[Row], str]]:
    """Group rows with equal status, variant and reason, so that one compiler error is printed once."""
    rows_by_reason: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        rows_by_reason.setdefault((row.status, row.variant, row.reason), []).append(row)
    return [(group, reason) for (_, _, reason), group in rows_by_reason.items()]


def chart_name(operator: str, section_index: int) -> str:
    """Return the file name, without suffix, of the chart of an operator's section.

    `section_index` counts the sections from 0 in the run's order.
    """
    return f"{file_name(operator)}-{section_index + 1}"


def file_name(operator: str) -> str:
    """Return an operator's name with all characters replaced that are unsafe in file names."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "-_" else "_" for c in operator)[:60] or "operator"


def anchors_of(all_sections: Sequence[Section]) -> list[str]:
    """Return an HTML id for each section, such as "conv2d-n8-c64-layoutnhwc".

    Ids are made of names, so that links stay valid when a suite grows.
    """
    uses = dict.fromkeys(("filter", "how", "overview", "tip", "top"), 1)
    anchors = []
    for section in all_sections:
        name = "-".join(
            re.findall(r"[A-Za-z0-9_]+", f"{file_name(section.operator)} {section.problem.replace('=', '')}")
        )
        uses[name] = uses.get(name, 0) + 1
        anchors.append(name if uses[name] == 1 else f"{name}-{uses[name]}")
    return anchors
