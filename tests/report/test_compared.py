"""The comparison of two runs in words: what was not compared does not bury what was."""

from __future__ import annotations

from opbench.report.comparison import comparison_lines, to_page
from opbench.results.comparison import compare_runs
from support.builders.runs import pair, result


def test_what_was_not_compared_takes_a_line_a_reason_and_is_folded_on_the_page() -> None:
    base, new = pair()
    for found in (base, new):
        found.results += [
            result(f"wgmma_{i}", status="unsupported", reason=f"needs k % {i + 2} == 0 (here k=7)", verdict=None)
            for i in range(9)
        ]
    compared = compare_runs(base, new)
    said = [line for line, _ in comparison_lines(compared) if line.startswith("not compared")]
    assert (
        "not compared: 10 cases: unsupported in BASE, unsupported in NEW (--all names them)" in said and len(said) == 4
    )
    named = [line for line, _ in comparison_lines(compared, show_all=True) if line.startswith("not compared")]
    assert len(named) == 13
    page = to_page(compared)
    assert "<details><summary>13 cases, each with its reason</summary>" in page
