"""Sources of the variants of a cpu run with counts, cut to the lines with memory accesses.

The results file does not store the source. The file that the traffic names, or the shipped one, is shown, but
only if its checksum equals the recorded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from opbench.backend.counts import Traffic
from opbench.errors import OpbenchError
from opbench.gpu.limits.ceilings import Peaks
from opbench.insight.diagnosis import group_by_advice, group_headline
from opbench.insight.explain import Explanation, explain
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.report.run.annotated import to_html
from opbench.report.run.sections import Section
from opbench.results.advice import CaseAdvice, advise_counted
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.results.rows import Row

CONTEXT_LINES = 2
"""Lines of context shown above and below a line with an access."""
MAX_CHARACTERS = 1_000_000
"""Most characters of all listings of a page together."""
PROBLEMS = 4
"""Most problems listed above a source; the others are only marked at their lines."""


@dataclass(frozen=True)
class Listing:
    """The source of one variant, annotated with counts."""

    name: str
    summary: str
    body: Markup
    advised: CaseAdvice
    """The advice on the variant, from the same counts."""
    own: bool
    """Whether the variant is in a file that the user named on the command line."""


def listings(
    run: Run, all_sections: Sequence[Section], roots: Sequence[Path] = (), peaks: Peaks | None = None
) -> dict[tuple[str, str], list[Listing]]:
    """Return the annotated sources by operator and problem; each variant once, within the page's size limit.

    `roots` are extra folders of variants, `peaks` those of the GPU whose limits are shown.
    """
    if not run.traffic:
        return {}
    results = {result.case: result for result in run.results}
    by_problem: dict[tuple[str, str], list[Listing]] = {}
    listed_variants: set[tuple[str, str]] = set()
    variants_of_operator: dict[str, list[Variant]] = {}
    catalog, characters_left = Catalog(roots), MAX_CHARACTERS
    for section in all_sections:
        for row in section.unmeasured:
            if (row.operator, row.variant) in listed_variants or row.case not in run.traffic:
                continue
            listed_variants.add((row.operator, row.variant))
            listing = _listing(catalog, variants_of_operator, results[row.case], row, run.traffic[row.case], peaks)
            if listing is not None and len(listing.body) <= characters_left:
                characters_left -= len(listing.body)
                by_problem.setdefault((section.operator, section.problem), []).append(listing)
    return by_problem


def _listing(
    catalog: Catalog,
    variants_of_operator: dict[str, list[Variant]],
    result: Result,
    row: Row,
    traffic: Traffic,
    peaks: Peaks | None,
) -> Listing | None:
    """Return the annotated source of a variant; None without problems, or if the source has changed since the run."""
    try:
        if row.operator not in variants_of_operator:
            variants_of_operator[row.operator] = catalog.variants(row.operator)
        variant = _variant_of_file(catalog, row, traffic) or next(
            (v for v in variants_of_operator[row.operator] if v.name == row.variant), None
        )
        if variant is None or variant.text_sha256 != (result.text_sha256 or result.source_sha256):
            return None
        case = Case(variant, result.config, catalog.operator(row.operator).from_axes(result.axes))
        # The run may come from another checkout, where the files had other paths.
        names = {source.path.name: source.text for source in variant.sources}
        renamed_traffic = traffic.renamed(
            lambda file: next((name for name in names if file.endswith(f"/{name}")), file)
        )
        subject = Subject.of_case(case, variants_of_operator[row.operator])
        explanation = explain(subject, renamed_traffic, (), names, peaks, result.resources)
        advised = advise_counted(
            case, renamed_traffic, result.resources, peaks, subject, names, result.resources_missing
        )
    except (OpbenchError, OSError):
        return None
    if not explanation.problems:
        return None
    costliest_group = group_by_advice(explanation.problems)[0]
    summary = f"`{row.variant}`, {group_headline(costliest_group, explanation.problems)}"
    return Listing(row.name, summary, Markup(to_html(_cut(explanation))), advised, row.own)


def _variant_of_file(catalog: Catalog, row: Row, traffic: Traffic) -> Variant | None:
    """Return the variant in the file that the traffic names; None if the file no longer exists."""
    for path in dict.fromkeys(Path(entry.file) for entry in traffic.lines):
        if not path.is_absolute() or path.suffix != ".cu" or not path.is_file():
            continue
        # Otherwise the header of the file names the operator.
        folder = row.operator if path.parent.name == row.operator else ""
        try:
            variants = catalog.variants_in(path, folder)
        except OpbenchError:
            continue  # not a variant but a file that a variant includes
        for variant in variants:
            if (variant.operator, variant.name) == (row.operator, row.variant):
                return variant
    return None


def _cut(explanation: Explanation) -> Explanation:
    """Cut an explanation to the worst problems and to the source lines around accesses."""
    files = tuple(file.around_counts(CONTEXT_LINES) for file in explanation.files)
    return replace(explanation, problems=explanation.problems[:PROBLEMS], files=files)
