"""Verdicts as SARIF 2.1.0 (OASIS, sections 3.13 to 3.30), which code hosts show at the lines of a change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench._version import __version__
from opbench.backend.findings import Finding, RelatedLocation
from opbench.backend.rules import rule_of
from opbench.records import JSON
from opbench.results.faults import faults_of
from opbench.results.result import Result

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class FaultAtLine:
    """One kind of fault at one line, for all cases that have it."""

    finding: Finding
    cases: tuple[str, ...]
    level: str = "error"
    """SARIF's level: "error", or "note" for allowed behaviour."""

    @property
    def uri(self) -> str:
        """Return the file of the fault, relative to the current folder if it is inside."""
        return _uri(self.finding.location_to_show[0])

    @property
    def line(self) -> int:
        """Return the line of the fault in its file; 1 if unknown."""
        return max(self.finding.location_to_show[1], 1)

    @property
    def text(self) -> str:
        """Return the text of the finding: message, thread, details and the name of one case."""
        finding = self.finding
        more_cases = f" and {len(self.cases) - 1} more" if len(self.cases) > 1 else ""
        thread_text = f", {finding.block_and_thread}" if finding.block_and_thread else ""
        details = "".join(f" {detail}" for detail in finding.details)
        return f"{finding.message}{thread_text}.{details} In {self.cases[0]}{more_cases}."


def faults_by_line(results: Sequence[Result], file_of: Callable[[Result], str]) -> list[FaultAtLine]:
    """Return the faults by kind and line; `file_of` names a variant's file, for faults without a line."""
    return _merge_by_line([(result, faults_of(result, file_of(result))) for result in results], "error")


def notes_by_line(results: Sequence[Result], file_of: Callable[[Result], str]) -> list[FaultAtLine]:
    """Return allowed but surprising behaviour, such as several threads that store one value, by kind and line."""
    return _merge_by_line([(result, result.verdict.notes) for result in results if result.verdict], "note")


def _merge_by_line(findings_by_result: Sequence[tuple[Result, Sequence[Finding]]], level: str) -> list[FaultAtLine]:
    """Merge equal findings at one line; each result has the cases with the finding."""
    first_by_key: dict[tuple[str, str, int], Finding] = {}
    cases: dict[tuple[str, str, int], list[str]] = {}
    for result, findings in findings_by_result:
        for finding in findings:
            file, line, _ = finding.location_to_show
            key = finding.rule, file, line
            first_by_key.setdefault(key, finding)
            cases.setdefault(key, []).append(result.case)
    return [FaultAtLine(entry, tuple(dict.fromkeys(cases[key])), level) for key, entry in first_by_key.items()]


def _uri(file: str) -> str:
    """Return a file as a URI, relative to the current folder if the file is inside."""
    relative = os.path.relpath(file or ".")
    return Path(file).resolve().as_uri() if relative.startswith("..") else Path(relative).as_posix()


def sarif_log(faults: Sequence[FaultAtLine]) -> Mapping[str, JSON]:
    """Return the faults as a SARIF log."""
    rule_names = sorted({fault.finding.rule for fault in faults})
    driver: dict[str, JSON] = {
        "name": "opbench",
        "semanticVersion": __version__,
        "rules": [_sarif_rule(name) for name in rule_names],
    }
    entries = [_sarif_result(fault, rule_names.index(fault.finding.rule)) for fault in faults]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": entries}]}


def _sarif_rule(name: str) -> dict[str, JSON]:
    """Return a rule of the checker with its title and remedy in SARIF's form."""
    rule = rule_of(name.replace("-", "_"))
    help_text = f"{rule.remedy} See: opbench help finding {name}".strip()
    return {"id": name, "shortDescription": {"text": rule.title}, "help": {"text": help_text}}


def _sarif_result(fault: FaultAtLine, index: int) -> dict[str, JSON]:
    """Return a fault as a SARIF result; `index` is the position of its rule."""
    finding = fault.finding
    sarif_result: dict[str, JSON] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": fault.level,
        "message": {"text": fault.text},
        "locations": [_sarif_location(*finding.location_to_show)],
        "partialFingerprints": {"opbench/v1": f"{finding.rule}:{fault.uri}:{fault.line}"},
        "properties": {"remedy": finding.remedy},
    }
    related = list(finding.related)
    if finding.location_to_show[0] != finding.file and finding.line:
        related.insert(0, RelatedLocation("in the header", finding.file, finding.line, finding.column))
    if related:
        sarif_result["relatedLocations"] = [
            {**_sarif_location(r.file, r.line, r.column), "message": {"text": r.message}} for r in related
        ]
    return sarif_result


def _sarif_location(file: str, line: int, column: int) -> dict[str, JSON]:
    """Return a source position as SARIF; an unknown line becomes line 1."""
    region = {"startLine": max(line, 1), **({"startColumn": column} if column else {})}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, "region": region}}
