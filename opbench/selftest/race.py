"""Measures wall times for the self-test in child processes: both engines in one, then one case in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.records import from_json
from opbench.running.profile import PrintLine
from opbench.running.suite import read_suite
from opbench.selftest.children import in_child
from opbench.selftest.walltime import (
    MOST_CELLS,
    RACE_LIMIT_S,
    ComparedCell,
    Comparison,
    SingleProcessTime,
    interval_half_width,
    spread,
)

SPARE_TIME_S = 120.0
"""Extra time for the process's start and for the case that runs when the limit is reached."""


def compared_cases() -> list[Case]:
    """Return the quick suite's kernels, with one config each."""
    suite = read_suite(Path("quick"), Catalog(), "cuda")
    cases = {c.name: c for c in suite.cases if not c.variant.is_library and c.unmet_requirement() is None}
    return [cases[name] for name in spread(cases, MOST_CELLS)]


def compare_engines_in_child(print_line: PrintLine = lambda line: None) -> tuple[list[Comparison], list[str]]:
    """Compare both engines on the quick suite's cases; raises EnvironmentFault if cuda.bench is missing."""
    names = [case.name for case in compared_cases()]
    answers, _ = in_child(
        "bench", "selftest-race", ["race", *_arguments(names)], RACE_LIMIT_S + SPARE_TIME_S, print_line
    )
    return comparisons(answers)


def comparisons(answers: Mapping[str, Mapping[str, Any]]) -> tuple[list[Comparison], list[str]]:
    """Read the child's answers by case: comparisons, and a note for each skipped case."""
    compared, skipped = [], []
    for case, answer in answers.items():
        cell = from_json(ComparedCell, answer)
        if own := cell.own:
            bench_width, bench_count = interval_half_width(cell.bench_samples_s), len(cell.bench_samples_s)
            own_fields = own.spent_s, own.half_width, own.samples, own.stop_reason
            compared.append(Comparison(case, *own_fields, cell.bench_s, bench_width, bench_count))
        else:
            skipped.append(f"left out: {case}: {cell.left_out}")
    return compared, skipped


def time_in_own_processes(names: Sequence[str], print_line: PrintLine = lambda line: None) -> list[SingleProcessTime]:
    """Measure each case by `cuda.bench` in its own process, and time that process."""
    times = []
    for name in names:
        answer, spent_s = in_child("bench", "selftest-race", ["alone", *_arguments([name])], RACE_LIMIT_S, print_line)
        times.append(SingleProcessTime(name, spent_s, answer["bench_s"]))
    return times


def _arguments(names: Sequence[str]) -> list[str]:
    return [text for name in names for text in ("--case", name)]
