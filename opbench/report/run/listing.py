"""Annotated sources of a cpu run's variants, cut to the lines that count.

The results file holds no source: the one that the traffic names, or the shipped one, is shown, and only where its
checksum is the one that the run recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from opbench.backend.counts import Traffic
from opbench.errors import OpbenchError
from opbench.insight.explain import Explanation, explain
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.report.run.annotated import to_html
from opbench.report.run.sections import Section
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.results.rows import Row

AROUND = 2
"""Lines shown above and below one with an access."""
LARGEST = 1_000_000
"""Characters that all listings of a page may take."""
PROBLEMS = 4
"""Problems listed above a source; the lesser ones are marked beside their lines."""


@dataclass(frozen=True)
class Listing:
    """One variant's annotated source."""

    name: str
    summary: str
    body: Markup


def listings(run: Run, parts: Sequence[Section], roots: Sequence[Path] = ()) -> dict[tuple[str, str], list[Listing]]:
    """By operator and problem; each variant once, where the run has it first, as long as the page stays small.

    `roots` are further folders laid out as variants/.
    """
    if not run.traffic:
        return {}
    results = {result.case: result for result in run.results}
    found: dict[tuple[str, str], list[Listing]] = {}
    seen: set[tuple[str, str]] = set()
    known: dict[str, list[Variant]] = {}
    catalog, room = Catalog(roots), LARGEST
    for part in parts:
        for row in part.unmeasured:
            if (row.operator, row.variant) in seen or row.case not in run.traffic:
                continue
            seen.add((row.operator, row.variant))
            traffic = Traffic.from_json(run.traffic[row.case])
            made = _listing(catalog, known, results[row.case], row, traffic)
            if made is not None and len(made.body) <= room:
                room -= len(made.body)
                found.setdefault((part.operator, part.problem), []).append(made)
    return found


def _listing(
    catalog: Catalog, known: dict[str, list[Variant]], result: Result, row: Row, traffic: Traffic
) -> Listing | None:
    """None when nothing is wrong, or when the source at hand is not the one that ran."""
    try:
        if row.operator not in known:
            known[row.operator] = catalog.variants(row.operator)
        variant = _own(catalog, row, traffic) or next((v for v in known[row.operator] if v.name == row.variant), None)
        if variant is None or variant.text_sha256 != (result.text_sha256 or result.source_sha256):
            return None
        case = Case(variant, result.config, catalog.operator(row.operator).from_axes(result.axes))
        # The run may come from another checkout, where the files had other paths.
        names = {source.path.name: source.text for source in variant.sources}
        moved = traffic.renamed(lambda file: next((name for name in names if file.endswith(f"/{name}")), file))
        explanation = explain(case, moved, (), names, known[row.operator])
    except (OpbenchError, OSError):
        return None
    if not explanation.problems:
        return None
    worst = explanation.problems[0]
    summary = f"`{row.variant}`: {worst.kind} at {worst.place}, {worst.saving}"
    return Listing(row.name, summary, Markup(to_html(_cut(explanation))))


def _own(catalog: Catalog, row: Row, traffic: Traffic) -> Variant | None:
    """A variant from a file of the user's, which the run has by its path; its operator is a shipped one."""
    for path in dict.fromkeys(Path(entry.file) for entry in traffic.lines):
        if not path.is_absolute() or path.suffix != ".cu" or not path.is_file():
            continue
        folder = row.operator if path.parent.name == row.operator else ""  # else its header names the operator
        try:
            variants = catalog.variants_in(path, folder)
        except OpbenchError:
            continue  # a file that one with a header includes
        for variant in variants:
            if (variant.operator, variant.name) == (row.operator, row.variant):
                return variant
    return None


def _cut(explanation: Explanation) -> Explanation:
    """The worst problems, and of each file the lines around accesses."""
    files = tuple(file.around(AROUND) for file in explanation.files)
    return replace(explanation, problems=explanation.problems[:PROBLEMS], files=files)
