"""Time kernels on a GPU with the rules of timing and without them, in turns: the rules must not make a kernel slower.

    python tests/timing_rules_cost.py FILE SUITE… [--limit SECONDS] [--samples 30]

"With" is a launch as `opbench run` times it: contents rotate, outputs are poisoned, module variables are compared and
drawn samples are judged. "Without" repeats one launch on the buffers of the check. "Again" is "without" a second time:
its ratio shows how well times repeat. All three take one sample in turn, with a cold L2 cache. FILE gets a line of JSON
per case with the three medians in seconds, and the reason if the rules refuse the case. Each variant is timed once,
in the first case of the suites; `--limit` starts no problem after these seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from opbench.backend.base import DeviceClock
from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.checking.measuring import timed_cases
from opbench.errors import OpbenchError
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.running.suite import read_suite
from opbench.timing.sampling import TimingOptions, measure

ORDER = ("with", "without", "again")


def one_case_per_variant(suites: Iterable[str], catalog: Catalog) -> list[list[Case]]:
    """Return the first case of each kernel in the suites, grouped by problem."""
    cases: dict[str, Case] = {}
    for suite in suites:
        for case in read_suite(Path(suite), catalog, "cuda").cases:
            if not case.variant.is_library:
                cases.setdefault(case.variant.id, case)
    by_problem: dict[Operator, list[Case]] = {}
    for case in cases.values():
        by_problem.setdefault(case.problem, []).append(case)
    return list(by_problem.values())


def times_of(
    session: Session, clock: DeviceClock, cases: Sequence[Case], options: TimingOptions
) -> list[dict[str, Any]]:
    """Time the cases of one problem in all three ways and return their lines."""
    with timed_cases(session, cases, "cold", clock) as timing:
        launches, turns = {}, {}
        for (name, ready), way in itertools.product(timing.timed.items(), ORDER):
            launches[f"{way} {name}"] = ready.binding.launch
            if way == "with":
                turns[f"{way} {name}"] = timing.launch_sources[name]
        measured = measure(clock, launches, options, launch_sources=turns)
        refused: Mapping[str, str] = {**timing.invalid_cases, **timing.invalid_times(), **timing.faults}
        lines = []
        for case in cases:
            line: dict[str, Any] = {"case": case.name, "refused": refused.get(case.name, "")}
            if f"with {case.name}" in measured:
                line |= {way: measured[f"{way} {case.name}"].median_s for way in ORDER}
            lines.append(line)
        return lines


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return how much longer the rules make the times: the spread of both ratios over all cases."""
    timed = [line for line in lines if "with" in line]
    rows = [f"{len(lines)} kernels, {sum(bool(line['refused']) for line in lines)} refused"]
    for way in ("with", "again"):
        ratios = sorted(line[way] / line["without"] for line in timed)
        if len(ratios) > 1:
            above = sum(ratio > 1.01 for ratio in ratios)
            cuts = statistics.quantiles(ratios, n=20, method="inclusive")
            rows.append(
                f"{way}/without: median {statistics.median(ratios):.4f}, 5 % to 95 %: {cuts[0]:.4f} to {cuts[-1]:.4f}, "
                f"largest {ratios[-1]:.4f}; more than 1 % longer: {above} of {len(ratios)}"
            )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the cases and print a summary; exit code 1: a case was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--samples", type=int, default=30)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    session = Session(open_backend("cuda"))
    clock = session.backend.clock("cold")  # type: ignore[attr-defined]
    groups = one_case_per_variant(options.suites, Catalog())
    requests = dict.fromkeys(
        case.request() for group in groups for case in group if not session.unsupported_reason(case)
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for built in [pool.submit(session.backend.compile, request) for request in requests]:
            built.exception()  # a kernel that does not compile has a line of its own below
    print(f"{len(requests)} modules after {time.monotonic() - began:.1f} s", flush=True)
    timing = TimingOptions(min_samples=options.samples, max_samples=options.samples, warmup_s=0.005, budget_s=0.5)
    lines: list[dict[str, Any]] = []
    with options.file.open("w", encoding="utf-8") as file:
        for group in groups:
            if time.monotonic() - began > options.limit:
                break
            try:
                able = [case for case in group if not session.unsupported_reason(case)]
                rows = times_of(session, clock, able, timing) if able else []
            except OpbenchError as error:
                rows = [{"case": case.name, "refused": f"{type(error).__name__}: {error}"} for case in group]
            for row in rows:
                file.write(json.dumps(row) + "\n")
            file.flush()
            lines += rows
    print(summary(lines))
    return int(any(line["refused"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
