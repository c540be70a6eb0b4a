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
from opbench.report.ladder import ladder_readme, ladders_overview, measured_problems
from opbench.report.linked_table import LinkedTable, with_rows
from opbench.results.files import Run, read_content, run_file, run_files
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
    """A table in a document."""

    path: Path
    name: str
    table: LinkedTable


def ladder_files(root: Path, catalog: Catalog, runs: Sequence[Run], tables: Sequence[DocumentTable]) -> LadderFiles:
    """Return the documents below `root` that depend on these runs and on `tables` of networks.

    A README of an operator that the runs did not measure is not changed if it shows measurements. A README with
    rows that these runs lack is not changed either. Raises UsageError when a run has no times.
    """
    measured = {run.folder: {(r.operator, r.problem, r.variant) for r in rows(run) if r.ranked} for run in runs}
    for folder, cells in measured.items():
        if not cells:
            raise UsageError(
                f"{folder}: no case of this run has a time, and a ladder shows times; name a run on a GPU, or make "
                "one: opbench run SUITE --backend cuda",
                kind="no-times",
                subject=folder,
            )
    files = LadderFiles()
    all_measured = set().union(*measured.values())
    for name in catalog.operator_names():
        path = root / "variants" / name / "README.md"
        current_text = _read(path)
        if name not in {operator for operator, _, _ in all_measured} and measured_cells(current_text):
            continue
        variants = catalog.variants(name)
        layouts = catalog.operator(name).choices.get("layout", ())
        names = {variant.name for variant in variants}
        measured_here = measured_problems(name, runs, names)
        text = ladder_readme(name, catalog.operator_title(name), variants, measured_here, layouts)
        all_cells = {(problem, variant) for operator, problem, variant in all_measured if operator == name}
        shown = {(problem, row.variant) for _, problem, group in measured_here for row in group}
        lost_rows = {cell for cell in _lost_rows(current_text, shown, all_cells) if cell[1] in names}
        if lost_rows:
            files.refusals[path] = _lost_rows_text(lost_rows, current_text, root)
        else:
            files.texts[path] = text
    operator_names = [
        name
        for name in catalog.operator_names()
        if root / "variants" / name / "README.md" in files.texts and not catalog.operator_role(name)
    ]
    _add_overviews(files, root, operator_names, runs, tables)
    return files


def measured_cells(text: str) -> set[ProblemVariant]:
    """Return the problems and variants in the tables of an operator's README."""
    cells, problem = set(), ""
    for heading, variant in re.findall(r"^(?:## `([^`]+)`|\| \[`([^`]+)`\])", text, re.MULTILINE):
        problem = heading or problem
        if variant and problem:
            cells.add((problem, variant))
    return cells


def _lost_rows(old_text: str, new_cells: set[ProblemVariant], measured: set[ProblemVariant]) -> set[ProblemVariant]:
    """Return the rows of the old text that the new one lacks, except for problems that these runs measured again."""
    problems = {problem for problem, _ in new_cells}
    return {cell for cell in measured_cells(old_text) - new_cells if cell[0] in problems or cell not in measured}


def _lost_rows_text(lost: set[ProblemVariant], old_text: str, root: Path) -> str:
    problem, variant = min(lost)
    more_text = f" and {len(lost) - 1} more rows" if lost - {(problem, variant)} else ""
    start_times = dict.fromkeys(re.findall(r"run `[^`]+` of (\S+)\. ", old_text)).keys()
    folders = {_started(path): path.relative_to(root).as_posix() for path in reversed(_folders(root))}
    hint = (
        f" ({' '.join(folders[start] for start in start_times if start in folders)})"
        if start_times & folders.keys()
        else ""
    )
    return f"it shows `{variant}` at `{problem}`{more_text}, which would go; name the runs that have them first{hint}"


def _folders(root: Path) -> list[Path]:
    return [path.parent for path in run_files(root / "reports")]


def _started(folder: Path) -> str:
    try:
        return str(json.loads(read_content(run_file(folder)).split(b"\n", 1)[0] or b"{}").get("started", ""))
    except (ValueError, AttributeError):
        return ""


def _add_overviews(
    files: LadderFiles, root: Path, operators: Sequence[str], runs: Sequence[Run], tables: Sequence[DocumentTable]
) -> None:
    """Add the tables over all runs; a row of another run stays while the file that it links to exists."""
    ladders = ladders_overview(operators, runs)
    for path, name, table in (DocumentTable(root / "variants" / "README.md", "ladders", ladders), *tables):
        text = _read(path)
        if text and table.rows:
            files.texts[path] = with_rows(text, name, table, path.parent)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
