"""Kernels that cheat about their time, and honest twins: cheats must get no time, twins must get one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench import units
from opbench.errors import EnvironmentFault, OpbenchError
from opbench.results import selftest
from opbench.results.result import Result
from opbench.results.selftest import Part
from opbench.timing.clock import SecondsClock

RIGHT = "right"
"""The expectation for an honest twin: it is right and has a time."""
NO_GAIN = "no gain"
"""The expectation for a trick that the harness defeats: a time no shorter than the twin's."""
OUTCOMES: dict[tuple[str, ...], str] = {(RIGHT,): selftest.HONEST_TIMED, (NO_GAIN,): selftest.NO_GAIN}
"""The required outcome for each of these expectations; for all others it is `selftest.REJECTED`."""
GAIN = 0.9
"""A gain is a time below this share of the twin's; the two are measured one after the other."""


@dataclass(frozen=True)
class Expectation:
    """The expectation that a file states in comments such as `// expect: …`."""

    texts: tuple[str, ...]
    """Texts, any of which the report must contain; or only RIGHT or NO_GAIN."""
    problems: tuple[str, ...] = ()
    """The problems to run on; empty for the operator's examples."""
    twin: Path | None = None
    """An honest kernel that does the same work."""


Judge = Callable[[Path, Sequence[str]], Sequence[Result]]
"""Runs one file like a user's own on problems and returns the results of its cases."""


def expectation(path: Path) -> Expectation:
    """Read the expectation in a file's comments: `expect`, and optionally `problem` and `twin`."""
    text = path.read_text(encoding="utf-8")
    header: dict[str, str] = dict(re.findall(r"^(?:#|//) (expect|problem|twin): (.*)$", text, re.MULTILINE))
    if "expect" not in header:
        raise OpbenchError(f"{path} has no line '# expect: …' or '// expect: …'", kind="no-expectation", subject=path)
    twin = path.parent / "honest" / f"{header['twin']}.cu" if "twin" in header else None
    return Expectation(tuple(header["expect"].split("|")), (header["problem"],) if "problem" in header else (), twin)


def is_caught(results: Sequence[Result], texts: Sequence[str]) -> bool:
    """Return whether no case counts as right and some report contains one of these texts."""
    supported = [r for r in results if r.status != "unsupported"]
    reports = [f"{r.status}: {r.reason}" for r in supported]
    return (
        bool(supported)
        and all(r.status != "right" for r in supported)
        and any(w in text for w in texts for text in reports)
    )


def has_time(results: Sequence[Result]) -> bool:
    """Return whether all cases that ran are right and have a time."""
    supported = [r for r in results if r.status != "unsupported"]
    return bool(supported) and all(r.status == "right" and r.measurement is not None for r in supported)


def gains_nothing(results: Sequence[Result], twin: Sequence[Result]) -> bool:
    """Return whether each case gets no time, or takes about as long as the twin's case on the same problem."""
    times = {r.problem: r.measurement.median_s for r in twin if r.measurement}
    return all(
        r.status != "right"
        or (r.measurement is not None and r.measurement.median_s >= GAIN * times.get(r.problem, 0.0))
        for r in results
    )


def cheats(files: Sequence[Path], judge: Judge, budget_s: float = 0.0, now_s: SecondsClock = time.perf_counter) -> Part:
    """Run every cheat and every honest twin through the same path as a user's own file."""
    part, rows = Part(selftest.CHEATS, "Cheats that concern time"), []
    if not files:
        part.notes.append("no cheats ship with this installation")
    results_of_file: dict[Path, Sequence[Result]] = {}
    for path in files:
        name, expected = path.stem.replace("_", " "), expectation(path)
        expected_outcome = OUTCOMES.get(expected.texts, selftest.REJECTED)
        try:
            results = results_of_file[path] = judge(path, expected.problems)
            if expected.texts == (NO_GAIN,) and expected.twin and expected.twin not in results_of_file:
                results_of_file[expected.twin] = judge(expected.twin, expected.problems)
        except EnvironmentFault as fault:
            part.add_claim(name, str(fault).splitlines()[0], expected_outcome, None)
            continue
        except OpbenchError as error:
            results, outcome = [], str(error)
        else:
            outcome = _reported(results, results_of_file.get(expected.twin, ()) if expected.twin else ())
        unsupported = bool(results) and all(r.status == "unsupported" for r in results)
        holds = None if unsupported else _holds(expected, results, results_of_file)
        outcome = outcome.splitlines()[0]
        part.add_claim(name, outcome, expected_outcome, holds)
        part.figures[path.stem] = [{"case": r.case, "status": r.status, "reason": r.reason} for r in results]
        as_expected = {True: "yes", False: "NO", None: "not checked"}[holds]
        rows.append((name, " or ".join(expected.texts), as_expected, outcome))
    part.add_table("What each was reported as", ("cheat or honest kernel", "expected", "as expected", "reported"), rows)
    return part


def _reported(results: Sequence[Result], twin: Sequence[Result]) -> str:
    """Return the status of a file's first case with its reason, or with its time and its twin's on that problem."""
    if not results:
        return "no case"
    first = results[0]
    if first.reason or first.measurement is None:
        return f"{first.status}: {first.reason}" if first.reason else first.status
    reported = f"{first.status}, {units.time(first.measurement.median_s)}"
    twin_s = next((r.measurement.median_s for r in twin if r.measurement and r.problem == first.problem), None)
    return f"{reported}; its honest twin takes {units.time(twin_s)}" if twin_s is not None else reported


def _holds(expected: Expectation, results: Sequence[Result], results_of_file: dict[Path, Sequence[Result]]) -> bool:
    if expected.texts == (RIGHT,):
        return has_time(results)
    if expected.texts == (NO_GAIN,):
        return bool(results) and expected.twin is not None and gains_nothing(results, results_of_file[expected.twin])
    return is_caught(results, expected.texts)
