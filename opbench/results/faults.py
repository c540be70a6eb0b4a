"""The faults of a result as findings: those of its checks, or one made from the result's reason."""

from __future__ import annotations

from opbench.backend.findings import Finding
from opbench.backend.rules import FAILED_CASE, WRONG_RESULT
from opbench.results.result import BAD_STATUSES, Result


def faults_of(result: Result, file: str) -> list[Finding]:
    """Return the faults of a case as findings, the most important first.

    A fault without a location gets `file`, the variant's file.
    """
    if result.status not in BAD_STATUSES:
        return []
    if findings := [finding for finding in (result.verdict.findings if result.verdict else ()) if not finding.hint]:
        return findings
    kind = (WRONG_RESULT if result.status == "wrong" else FAILED_CASE).kind
    first_line, *detail_lines = result.reason.strip().splitlines() or [""]
    message = first_line.removeprefix(f"{result.file}:{result.line}: ")
    return [Finding(kind, message, result.file or file, result.line, details=tuple(detail_lines))]
