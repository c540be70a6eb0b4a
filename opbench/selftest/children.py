"""Times of the self-test's cells by other clocks, each asked in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from opbench.errors import EnvironmentFault
from opbench.profile.commands import Target
from opbench.profile.profile import ProfileOptions, Say, profile_case, run_tool
from opbench.selftest.clocks import median_of
from opbench.selftest.device import Cell
from opbench.timing import stats

PACKAGES = {"cupti": ("cupti-python", "cupti-python"), "bench": ("cuda-bench", "'cuda-bench[cu13]'")}
"""Of each witness: the distribution and what to install."""
REPEATS = 3
"""Launches of each cell under Nsight Compute."""
LIMIT_S = 300.0
RANGE = "selftest/clocks()"


def target(witness: str, cells: Sequence[Cell], *extra: str) -> tuple[str, ...]:
    """The program that launches the cells for one witness."""
    words = [word for cell in cells for word in ("--cell", cell.to_text())]
    return (sys.executable, "-P", "-m", "opbench", "selftest-target", witness, *words, *extra)


def times_in_child(witness: str, cells: Sequence[Cell], say: Say = lambda line: None) -> dict[str, float]:
    """What "cupti" or "bench" says; raises EnvironmentFault with the reason when it says nothing."""
    distribution, install = PACKAGES[witness]
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentFault(f"{distribution} is not installed; pip install {install}") from None
    with tempfile.TemporaryDirectory(prefix="opbench-witness-") as folder:
        path = Path(folder) / "times.json"
        output = run_tool(target(witness, cells, "--out", str(path)), ProfileOptions(time_limit_s=LIMIT_S), say)
        if output.returncode or not path.exists():
            last = next((line for line in reversed(output.lines) if line.strip()), "it said nothing")
            raise EnvironmentFault(f"{distribution} ended with exit code {output.returncode}: {last}")
        return median_of(json.loads(path.read_text()))


def times_by_ncu(cells: Sequence[Cell], say: Say = lambda line: None) -> dict[str, float]:
    """`gpu__time_duration` of each cell, caches flushed and clocks left alone, through `opbench profile`'s own path."""
    with tempfile.TemporaryDirectory(prefix="opbench-witness-") as folder:
        watched = Target(RANGE, target("ncu", cells))
        line = profile_case(watched, Path(folder), ProfileOptions(time_limit_s=LIMIT_S), None, say)
    return durations(cells, [kernel.get("time_s") for kernel in line["kernels"]])


def durations(cells: Sequence[Cell], times_s: Sequence[float | None]) -> dict[str, float]:
    """Medians by cell of kernels launched cell by cell, `REPEATS` times each."""
    if len(times_s) != REPEATS * len(cells):
        raise EnvironmentFault(f"ncu saw {len(times_s)} kernels of {REPEATS * len(cells)}")
    found: Mapping[str, list[float]] = {
        cell.name: [t for t in times_s[i * REPEATS : (i + 1) * REPEATS] if t is not None]
        for i, cell in enumerate(cells)
    }
    return {name: stats.median(times) for name, times in found.items() if times}
