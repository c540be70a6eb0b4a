"""What the self-test asks in processes of their own: times of its cells by other clocks."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opbench import paths
from opbench.errors import EnvironmentFault
from opbench.insight.nsight.commands import Target
from opbench.running.profile import ProfileOptions, Say, profile_case, run_tool
from opbench.selftest.clocks import median_of
from opbench.selftest.device import Cell
from opbench.timing import stats

PACKAGES = {"cupti": ("cupti-python", "cupti-python"), "bench": ("cuda-bench", "'cuda-bench[cu13]'")}
"""Of each witness: the distribution and what to install."""
REPEATS = 3
"""Launches of each cell under Nsight Compute."""
LIMIT_S = 300.0
RANGE = "selftest/clocks()"


def in_child(
    package: str, command: str, words: Sequence[str], limit_s: float, say: Say = lambda line: None
) -> tuple[Any, float]:
    """What a hidden command of opbench wrote as JSON, and its wall time with the process's start.

    `package` is a key of `PACKAGES` that the command needs. Raises EnvironmentFault with the reason when it
    says nothing.
    """
    distribution, install = PACKAGES[package]
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentFault(f"{distribution} is not installed; pip install {install}") from None
    with tempfile.TemporaryDirectory(prefix="opbench-selftest-") as folder:
        path = Path(folder) / "found.json"
        began = time.perf_counter()
        argv = (*opbench(command), *words, "--out", str(path))
        output = run_tool(argv, ProfileOptions(time_limit_s=limit_s), say)
        spent_s = time.perf_counter() - began
        if output.returncode or not path.exists():
            last = next((line for line in reversed(output.lines) if line.strip()), "it said nothing")
            raise EnvironmentFault(f"{distribution} ended with exit code {output.returncode}: {last}")
        return json.loads(path.read_text()), spent_s


def opbench(command: str) -> tuple[str, ...]:
    """The start of a command line that runs one of opbench's commands in a process of its own."""
    return tuple(paths.python("-m", "opbench", command))


def words_for(cells: Sequence[Cell]) -> list[str]:
    """Cells for a command line."""
    return [word for cell in cells for word in ("--cell", cell.to_text())]


def times_in_child(witness: str, cells: Sequence[Cell], say: Say = lambda line: None) -> dict[str, float]:
    """What "cupti" or "bench" says; raises EnvironmentFault with the reason when it says nothing."""
    found, _ = in_child(witness, "selftest-target", [witness, *words_for(cells)], LIMIT_S, say)
    return median_of(found)


def times_by_ncu(cells: Sequence[Cell], say: Say = lambda line: None) -> dict[str, float]:
    """`gpu__time_duration` of each cell, caches flushed and clocks left alone, through `opbench profile`'s own path."""
    with tempfile.TemporaryDirectory(prefix="opbench-witness-") as folder:
        watched = Target(RANGE, (*opbench("selftest-target"), "ncu", *words_for(cells)))
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
