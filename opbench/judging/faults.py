"""Convert results of cases to faults with codes; the texts of messages are never parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from opbench.backend.rules import rule_of
from opbench.judging.codes import CODES, RESULT_RULES
from opbench.judging.document import Fault
from opbench.judging.submission import document_path
from opbench.kernels.special_inputs import SPECIAL_INPUTS
from opbench.results.result import GOOD_STATUSES, RELAUNCH, Failure, Result

CODE_OF_FAILURE: dict[Failure, str] = {
    "": "launch-failed",
    "build": "does-not-compile",
    "check": "launch-failed",
    "time limit": "time-limit",
    "gpu build": "gpu-refuses",
    "measure": "launch-failed",
}
"""The code for each step in which a case can fail."""


def faults_of(results: Iterable[Result]) -> list[Fault]:
    """Return the faults of all cases; equal faults of several cases appear once, with the number of cases."""
    fault_by_location: dict[tuple[str, str, int, str], Fault] = {}
    for result in results:
        for fault in _faults_of_case(result):
            key = fault.code, fault.file, fault.line, fault.inputs
            fault_by_location[key] = (
                replace(fault_by_location[key], cases=fault_by_location[key].cases + 1)
                if key in fault_by_location
                else fault
            )
    return list(fault_by_location.values())


def code_of(result: Result) -> str:
    """Return the code of a case's first fault; "" for a case without a fault."""
    return next((fault.code for fault in _faults_of_case(result)), "")


def _faults_of_case(result: Result) -> Iterator[Fault]:
    """Yield the faults of one case; none for a case that is right."""
    if result.status in GOOD_STATUSES:
        return
    verdict = result.verdict
    inputs = verdict.run if verdict else ""
    findings = [finding for finding in verdict.findings if not finding.hint] if verdict else []
    location = {"file": document_path(result.file), "line": result.line}
    if result.status == "failed":
        yield Fault(CODE_OF_FAILURE[result.failure], result.reason, result.case, **location)  # type: ignore[arg-type]
    elif result.status == "invalid":
        code = "impossible-time" if result.measurement else "keeps-state"
        yield Fault(code, result.reason, result.case, inputs=inputs)
    elif inputs == RELAUNCH or not findings:
        yield Fault("old-output", result.reason, result.case, inputs=inputs)
    else:
        for finding in findings:
            code, (file, line, _) = finding.rule, finding.location_to_show
            if rule_of(finding.kind) in RESULT_RULES and inputs:
                code = "special-inputs" if inputs in SPECIAL_INPUTS else "whole-numbers"
            code = code if code in CODES else "wrong-result"
            name = document_path(file)
            yield Fault(code, finding.message, result.case, name, line, finding.source_to_show.strip(), inputs)
