"""Wall times for the self-test, each taken in processes of their own: both engines in one, then one cell in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.running.profile import Say
from opbench.running.suite import read_suite
from opbench.selftest.children import in_child
from opbench.selftest.walltime import MOST_CELLS, RACE_LIMIT_S, Alone, Lap, interval_half_width, spread

SPARE_S = 120.0
"""For the start, and for the cell under way at the limit."""


def race_cases() -> list[Case]:
    """The quick suite's kernels, one config each."""
    suite = read_suite(Path("quick"), Catalog(), "cuda")
    cases = {c.name: c for c in suite.cases if not c.variant.is_library and c.unmet() is None}
    return [cases[name] for name in spread(cases, MOST_CELLS)]


def race_in_child(say: Say = lambda line: None) -> tuple[list[Lap], list[str]]:
    """Laps of the quick suite's cells, and what was left out; raises EnvironmentFault when there is no cuda.bench."""
    names = [case.name for case in race_cases()]
    found, _ = in_child("bench", "selftest-race", ["race", *_words(names)], RACE_LIMIT_S + SPARE_S, say)
    return laps(found)


def laps(found: Mapping[str, Mapping[str, Any]]) -> tuple[list[Lap], list[str]]:
    """What the child told, by case."""
    done, left_out = [], []
    for case, told in found.items():
        if "left_out" in told:
            left_out.append(f"left out: {case}: {told['left_out']}")
            continue
        samples = told["bench_samples_s"]
        width = interval_half_width(samples)
        done.append(
            Lap(case, told["ours_s"], told["half_width"], told["samples"], told["stop_reason"], told["bench_s"], width,
                len(samples))
        )  # fmt: skip
    return done, left_out


def alone_in_children(names: Sequence[str], say: Say = lambda line: None) -> list[Alone]:
    """Each of these cells by `cuda.bench` in a process of its own, which is timed from outside."""
    found = []
    for name in names:
        told, spent_s = in_child("bench", "selftest-race", ["alone", *_words([name])], RACE_LIMIT_S, say)
        found.append(Alone(name, spent_s, told["bench_s"]))
    return found


def _words(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--case", name)]
