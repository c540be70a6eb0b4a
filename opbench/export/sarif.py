"""Verdicts as SARIF 2.1.0 (OASIS, sections 3.13 to 3.30), which code hosts show at the lines of a change."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench import __version__
from opbench.results.result import Result

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
WRONG = ("wrong", "failed", "invalid")
PLACE = re.compile(r"(?P<file>[^\s:]+\.(?:cu|cuh|h|hpp|py)):(?P<line>\d+): (?P<text>.*)", re.DOTALL)


@dataclass(frozen=True)
class FaultAtLine:
    """One kind of fault at one line, however many cases met it."""

    kind: str
    uri: str
    """Relative to the current folder where the file lies in it."""
    line: int
    text: str
    level: str = "error"
    """"note" for what is allowed."""


def faults(results: Sequence[Result], file_of: Callable[[Result], str]) -> list[FaultAtLine]:
    """What is wrong, by kind and line; `file_of` names a variant's file, for what no line is known of."""
    return _by_line([(result, _of(result, file_of)) for result in results if result.status in WRONG], "error")


def notes(results: Sequence[Result], file_of: Callable[[Result], str]) -> list[FaultAtLine]:
    """What is allowed and may surprise, such as several threads that store one value, by kind and line."""
    seen = [(result, result.verdict.notes) for result in results if result.verdict]
    return _by_line(
        [(r, [(n.kind, n.file or file_of(r), n.line, n.message) for n in each]) for r, each in seen], "note"
    )


def _by_line(seen: Sequence[tuple[Result, Sequence[tuple[str, str, int, str]]]], level: str) -> list[FaultAtLine]:
    words: dict[tuple[str, str, int], str] = {}
    cases: dict[tuple[str, str, int], list[str]] = {}
    for result, places in seen:
        for kind, file, line, text in places:
            key = kind, _uri(file), max(line, 1)
            words.setdefault(key, text)
            cases.setdefault(key, []).append(result.case)
    found = []
    for (kind, uri, line), text in words.items():
        met = list(dict.fromkeys(cases[kind, uri, line]))
        more = f" and {len(met) - 1} more" if len(met) > 1 else ""
        found.append(FaultAtLine(kind, uri, line, f"{kind.replace('_', ' ')}: {text} (in {met[0]}{more})", level))
    return found


def _of(result: Result, file_of: Callable[[Result], str]) -> list[tuple[str, str, int, str]]:
    """Kind, file, line and words of what is wrong with one case."""
    findings = result.verdict.findings if result.verdict else ()
    if listed := [(f.kind, f.file or file_of(result), f.line, f.message) for f in findings if not f.hint]:
        return listed
    kind = "wrong_result" if result.status == "wrong" else f"{result.status}_case"
    if place := PLACE.match(result.reason):
        return [(kind, place["file"], int(place["line"]), place["text"])]
    return [(kind, file_of(result), 1, result.reason)]


def _uri(file: str) -> str:
    here = os.path.relpath(file)
    return Path(file).resolve().as_uri() if here.startswith("..") else Path(here).as_posix()


def sarif(found: Sequence[FaultAtLine]) -> dict[str, object]:
    """The log that code hosts read."""
    rules = sorted({fault.kind for fault in found})
    driver = {
        "name": "opbench",
        "semanticVersion": __version__,
        "rules": [{"id": kind, "shortDescription": {"text": kind.replace("_", " ")}} for kind in rules],
    }
    entries = [
        {
            "ruleId": fault.kind,
            "ruleIndex": rules.index(fault.kind),
            "level": fault.level,
            "message": {"text": fault.text},
            "locations": [
                {"physicalLocation": {"artifactLocation": {"uri": fault.uri}, "region": {"startLine": fault.line}}}
            ],
            "partialFingerprints": {"opbench/v1": f"{fault.kind}:{fault.uri}:{fault.line}"},
        }
        for fault in found
    ]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": entries}]}
