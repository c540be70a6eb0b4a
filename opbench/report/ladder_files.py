"""Find the documents that depend on runs: the READMEs of operators and the tables over all runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from opbench.errors import UsageError
from opbench.kernels.folders import Catalog
from opbench.report.ladder import ladder_readme, ladders_overview, table_of, with_overview
from opbench.results.files import Run, content, run_file, run_files
from opbench.results.rows import rows

ProblemVariant = tuple[str, str]
"""A problem and a variant measured on that problem."""


@dataclass
class LadderFiles:
    """The new text of each document, and the documents that must not change, with the reason."""

    texts: dict[Path, str] = field(default_factory=dict)
    refusals: dict[Path, str] = field(default_factory=dict)

    @property
    def stale(self) -> dict[Path, str]:
        """Return the documents whose current text differs from the new text."""
        return {path: text for path, text in self.texts.items() if _read(path) != text}


class DocumentTable(NamedTuple):
    """A table in a document, between two comments with the table's name."""

    path: Path
    name: str
    table: str


def ladder_files(root: Path, catalog: Catalog, runs: Sequence[Run], tables: Sequence[DocumentTable]) -> LadderFiles:
    """Return the documents below `root` that depend on these runs and on `tables` of networks.

    A README of an operator that the runs did not measure is not changed if it shows measurements. A README with
    rows that these runs lack is not changed either. Raises UsageError when a run has no times.
    """
    measured = {run.folder: {(r.operator, r.problem, r.variant) for r in rows(run) if r.ranked} for run in runs}
    for folder, cells in measured.items():
        if not cells:
            raise UsageError(
                f"{folder}: no case of it has a time, and a ladder shows times; name a run of a GPU (--backend cuda)",
                kind="no-times",
                subject=folder,
            )
    files = LadderFiles()
    have = set().union(*measured.values())
    for name in catalog.operator_names():
        path = root / "variants" / name / "README.md"
        old = _read(path)
        if name not in {operator for operator, _, _ in have} and measured_cells(old):
            continue
        variants = catalog.variants(name)
        layouts = catalog.operator(name).choices.get("layout", ())
        text = ladder_readme(name, catalog.operator_title(name), variants, runs, layouts)
        own = {(problem, variant) for operator, problem, variant in have if operator == name}
        lost = {cell for cell in _lost_rows(old, text, own) if cell[1] in {v.name for v in variants}}
        if lost:
            files.refusals[path] = _refusal(lost, old, root)
        else:
            files.texts[path] = text
    shown = [
        name
        for name in catalog.operator_names()
        if root / "variants" / name / "README.md" in files.texts and not catalog.operator_role(name)
    ]
    _add_overviews(files, root, shown, runs, tables)
    return files


def measured_cells(text: str) -> set[ProblemVariant]:
    """Return the problems and variants in the tables of an operator's README."""
    cells, problem = set(), ""
    for heading, variant in re.findall(r"^(?:## `([^`]+)`|\| \[`([^`]+)`\])", text, re.MULTILINE):
        problem = heading or problem
        if variant and problem:
            cells.add((problem, variant))
    return cells


def _lost_rows(old: str, new: str, have: set[ProblemVariant]) -> set[ProblemVariant]:
    """Return the rows of the old text that the new text lacks, except for problems that these runs measured again."""
    shown = measured_cells(new)
    problems = {problem for problem, _ in shown}
    return {cell for cell in measured_cells(old) - shown if cell[0] in problems or cell not in have}


def _refusal(lost: set[ProblemVariant], old: str, root: Path) -> str:
    problem, variant = min(lost)
    more = f" and {len(lost) - 1} more rows" if lost - {(problem, variant)} else ""
    starts = dict.fromkeys(re.findall(r"run `[^`]+` of (\S+)\. ", old)).keys()
    folders = {_started(path): path.relative_to(root).as_posix() for path in reversed(_folders(root))}
    hint = f" ({' '.join(folders[start] for start in starts if start in folders)})" if starts & folders.keys() else ""
    return f"it shows `{variant}` at `{problem}`{more}, which would go; name the runs that have them first{hint}"


def _folders(root: Path) -> list[Path]:
    return [path.parent for path in run_files(root / "reports")]


def _started(folder: Path) -> str:
    try:
        return str(json.loads(content(run_file(folder)).split(b"\n", 1)[0] or b"{}").get("started", ""))
    except (ValueError, AttributeError):
        return ""


def _add_overviews(
    files: LadderFiles, root: Path, operators: Sequence[str], runs: Sequence[Run], tables: Sequence[DocumentTable]
) -> None:
    """Add the tables over all runs; a row of another run stays while the file that it links to exists."""
    ladders = ladders_overview(operators, runs) if runs else ""
    for path, what, table in (DocumentTable(root / "variants" / "README.md", "ladders", ladders), *tables):
        text = _read(path)
        if text and table:
            files.texts[path] = with_overview(text, _merged_rows(table_of(text, what), table, path.parent), what)


def _merged_rows(old: str, new: str, folder: Path) -> str:
    """Merge a table's new rows with old rows that the new table lacks, sorted by name.

    Old rows are dropped if the columns differ or their link, relative to `folder`, no longer exists.
    """
    head, fresh = new.splitlines()[:2], _named(new)
    if old.splitlines()[:2] != head:
        return new
    stay = {name: line for name, line in _named(old).items() if name not in fresh and _target(line, folder).exists()}
    order = sorted(stay | fresh, key=lambda name: [(part.isdigit(), int(part) if part.isdigit() else 0, part)
                                                   for part in re.split(r"(\d+)", name)])  # fmt: skip
    return "\n".join([*head, *((stay | fresh)[name] for name in order)]) + "\n"


def _named(table: str) -> dict[str, str]:
    return {line[3 : line.index("]")]: line for line in table.splitlines() if line.startswith("| [")}


def _target(line: str, folder: Path) -> Path:
    return folder / line[line.index("](") + 2 : line.index(")")]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
