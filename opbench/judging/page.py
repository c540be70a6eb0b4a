"""Show a verdict as lines for a terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opbench.judging.document import FILE, PAGE, Fault, Status, VerdictDocument
from opbench.report.run.evidence import flat_rows
from opbench.report.template import render_template, write_page

SECTIONS = (
    ("compiles", "compiles"),
    ("memory_safe", "memory-safe"),
    ("race_free", "race-free"),
    ("right", "right"),
    ("timed", "timed"),
    ("compared", "compared"),
    ("signs", "no cheating"),
)
"""The fields of the document with their names on the page."""
STATUS_MARKS: dict[Status, str] = {"passed": "yes", "failed": "no", "not decided": "–"}
"""The word for each status of a section."""


def verdict_lines(document: VerdictDocument) -> Iterator[str]:
    """Yield the lines of a verdict for a terminal, the overall answer first."""
    code = f" ({document.code})" if document.code else ""
    yield f"{document.overall}{code}: {document.reason}"
    for field, name in SECTIONS:
        section = getattr(document, field)
        yield f"  {name:<12} {STATUS_MARKS[section.status]:<4} {section.summary}"
    for sign in document.signs.seen:
        yield f"  sign: {sign.file}:{sign.line}: {sign.code}: {sign.title} (effect: {sign.effect})"
    for unjudged_part in document.lacking if document.overall == "accepted" else ():
        yield f"  not judged: {unjudged_part}"
    yield f"next: {document.next_step.sentence}"
    if document.next_step.command:
        yield f"      {document.next_step.command}"
    yield f"seed {document.seed}"


def faults_in_document(document: VerdictDocument) -> list[Fault]:
    """Return the faults of all sections, in the order of the sections."""
    sections = (getattr(document, field) for field, _ in SECTIONS if field != "signs")
    return [fault for section in sections for fault in section.faults]


def verdict_page(document: VerdictDocument) -> str:
    """Return a verdict as an HTML page."""
    names = ", ".join(variant.id for variant in document.submission.variants)
    return render_template(
        "verdict.html.j2",
        title=f"Verdict on {names}",
        names=names,
        document=document,
        sections=[(name, getattr(document, field)) for field, name in SECTIONS],
        faults=faults_in_document(document),
        marks=STATUS_MARKS,
        file=FILE,
        environment=flat_rows({k: v for k, v in document.judged.environment.items() if v not in (None, "", [])}),
    )


def write_verdict_page(document: VerdictDocument, folder: Path) -> None:
    """Write the HTML page of a verdict into the folder of its document."""
    write_page(folder / PAGE, verdict_page(document))
