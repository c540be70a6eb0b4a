"""Variants that lie about their time: each must be caught."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opbench.errors import EnvironmentFault, OpbenchError
from opbench.results.result import Result
from opbench.results.selftest import Part
from opbench.timing.clock import Now

Judge = Callable[[Path], Sequence[Result]]
"""Runs one file of a user's own and returns the results of its cases."""


def expected(path: Path) -> list[str]:
    """The words, separated by |, of which a report must hold one: `# expect: …` in the file."""
    line = re.search(r"^# expect: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not line:
        raise OpbenchError(f"{path} has no line '# expect: …'")
    return line[1].split("|")


def is_caught(results: Sequence[Result], words: Sequence[str]) -> bool:
    """Whether no case passes for right and one is reported in one of these words."""
    ran = [r for r in results if r.status != "unsupported"]
    reports = [f"{r.status}: {r.reason}" for r in ran]
    return bool(ran) and all(r.status != "right" for r in ran) and any(w in text for w in words for text in reports)


def cheats(files: Sequence[Path], judge: Judge, budget_s: float = 0.0, now: Now = time.perf_counter) -> Part:
    """Run every cheat through the same path as a user's own file."""
    part, rows = Part("cheats", "Cheats that concern time"), []
    if not files:
        part.notes.append("no cheats ship with this installation")
    for path in files:
        name, words = path.stem.replace("_", " "), expected(path)
        try:
            results = judge(path)
        except EnvironmentFault as fault:
            part.claim(name, str(fault).splitlines()[0], "caught", None)
            continue
        except OpbenchError as error:
            results, said = [], str(error)
        else:
            said = next((f"{r.status}: {r.reason}" if r.reason else r.status for r in results), "no case")
        unsupported = bool(results) and all(r.status == "unsupported" for r in results)
        caught = None if unsupported else is_caught(results, words)
        said = said.splitlines()[0]
        part.claim(name, said, "caught", caught)
        part.figures[path.stem] = [{"case": r.case, "status": r.status, "reason": r.reason} for r in results]
        rows.append((name, " or ".join(words), {True: "yes", False: "NO", None: "not checked"}[caught], said))
    part.table("What each was reported as", ("cheat", "expected", "caught", "reported"), rows)
    return part
