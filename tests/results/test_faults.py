"""What is wrong with a result, at the place that its error named."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.errors import CompileError, LaunchError, Location, Reason
from opbench.results.faults import faults_of
from opbench.results.result import Result, reason_fields
from support.builders.runs import result


def failed(reason: Reason | str) -> Result:
    """Return a case of relu that failed for a reason."""
    return result("vec4", 0.0, status="failed", **reason_fields(reason))


def test_a_fault_lies_where_its_error_does() -> None:
    error = CompileError("error: expected a ';'\n  int x\n", Location(Path("mine.cu"), 7))
    (fault,) = faults_of(failed(error.reason.with_prefix("while measured: ")), "variants/relu/vec4.cu")
    assert (fault.file, fault.line, fault.message) == ("mine.cu", 7, "while measured: error: expected a ';'")
    assert fault.details == ("  int x",)


@pytest.mark.parametrize("reason", ["the process died: other.cu:3: no", Reason("a.cu:9: looks like a place")])
def test_a_sentence_that_looks_like_a_place_is_none(reason: Reason | str) -> None:
    (fault,) = faults_of(failed(reason), "variants/relu/vec4.cu")
    assert (fault.file, fault.line, fault.message) == ("variants/relu/vec4.cu", 0, str(reason))


def test_cases_with_the_same_fault_have_one_key() -> None:
    """By the code of the error where it is recorded, and by the text in older runs."""
    errors = [
        LaunchError(f"a block of {threads} threads", kind="launch-limit", subject=subject)
        for threads, subject in ((2048, "block"), (4096, "block"), (2048, "grid"))
    ]
    first, same, other = (failed(error.reason).fault for error in errors)
    assert first == same != other
    older, same, other = (failed(text).fault for text in ("got 1.5 in k.cu:3", "got 2 in k.cu:3", "got 2 in k.cu:4"))
    assert older == same != other
