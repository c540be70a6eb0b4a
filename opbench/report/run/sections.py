"""The parts of a report: one section per operator and problem, holding its rows in the order they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opbench.results.rows import Row, ranks

SHOWN_CONFIGS = 12
"""With more configs than this a table shows each variant's best; the rest are folded away."""

STATUSES = ("right", "wrong", "failed", "invalid", "unsupported")

FALLEN_ORDER = ("invalid", "wrong", "failed", "unsupported")


@dataclass
class Group:
    """Ranked rows of one precision class with their rank as printed."""

    precision: str
    rows: list[tuple[Row, str]]
    rest: list[tuple[Row, str]] = field(default_factory=list)
    """Every config in order of rank, when `rows` holds only each variant's best."""


@dataclass
class Section:
    """One operator and problem."""

    operator: str
    problem: str
    rows: list[Row]
    groups: list[Group]
    unmeasured: list[Row]
    """Right, without a time."""
    fallen: list[Row]
    """Everything that is not right."""

    @property
    def winner(self) -> Row | None:
        """The fastest right row, of the first precision class."""
        return self.groups[0].rows[0][0] if self.groups else None

    @property
    def best_own(self) -> Row | None:
        """The fastest right row that is no library's, of the first precision class."""
        return next((row for row, _ in self.groups[0].rows if not row.library), None) if self.groups else None

    @property
    def not_right(self) -> list[Row]:
        """What ran and is not right: a fault, which stands above all else."""
        return [row for row in self.fallen if row.status != "unsupported"]

    @property
    def unsupported(self) -> list[Row]:
        """What could not run here: no fault."""
        return [row for row in self.fallen if row.status == "unsupported"]

    @property
    def moves_data_only(self) -> bool:
        """Whether the operator has no FLOPs and so no place on a FLOP roof."""
        return not any(row.flops for row in self.rows)

    @property
    def devices(self) -> list[str]:
        """Where it ran, in a run on several devices; one, unless cases were added later."""
        return sorted({row.device for row in self.rows} - {""})

    def count(self, status: str) -> int:
        """How many cases have a status."""
        return sum(row.status == status for row in self.rows)


def sections(rows: Sequence[Row]) -> list[Section]:
    """Sections in the run's order, problems of one operator together."""
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
    fallen = sorted((r for r in rows if r.status != "right"), key=lambda r: FALLEN_ORDER.index(r.status))
    return Section(operator, problem, rows, groups, unmeasured, fallen)


def _group(precision: str, rows: list[Row]) -> Group:
    everything = ranks(rows)
    if len(everything) <= SHOWN_CONFIGS:
        return Group(precision, everything)
    return Group(precision, ranks(best_configs(row for row, _ in everything)), everything)


def best_configs(rows: Iterable[Row]) -> list[Row]:
    """The first row of each variant."""
    best: dict[str, Row] = {}
    for row in rows:
        best.setdefault(row.variant, row)
    return list(best.values())


def same_reason(rows: Sequence[Row]) -> list[tuple[list[Row], str]]:
    """Rows that fell for the very same reason together, so that one compiler error is printed once."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.status, row.variant, row.reason), []).append(row)
    return [(group, reason) for (_, _, reason), group in found.items()]


def chart_name(operator: str, number: int) -> str:
    """The file of the chart of an operator's section, counted from 0 in the run's order, without its suffix."""
    return f"{file_name(operator)}-{number + 1}"


def file_name(operator: str) -> str:
    """An operator's name as part of a file's."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "-_" else "_" for c in operator)[:60] or "operator"


def anchors_of(parts: Sequence[Section]) -> list[str]:
    """An id a section, made of its names so that a link holds when a suite grows: "conv2d-n8-c64-layoutnhwc"."""
    found = dict.fromkeys(("filter", "how", "overview", "tip", "top"), 1)
    anchors = []
    for part in parts:
        name = "-".join(re.findall(r"[A-Za-z0-9_]+", f"{file_name(part.operator)} {part.problem.replace('=', '')}"))
        found[name] = found.get(name, 0) + 1
        anchors.append(name if found[name] == 1 else f"{name}-{found[name]}")
    return anchors
