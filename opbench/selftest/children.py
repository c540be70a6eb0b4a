"""Runs reference timers for the self-test in child processes."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opbench.child_process import python
from opbench.errors import EnvironmentFault
from opbench.insight.nsight.commands import ProfileTarget
from opbench.running.profile import PrintLine, ProfileOptions, profile_case, run_tool
from opbench.selftest.clocks import median_of
from opbench.selftest.device import Cell
from opbench.timing import stats

TIMER_PACKAGES = {"cupti": ("cupti-python", "cupti-python"), "bench": ("cuda-bench", "'cuda-bench[cu13]'")}
"""For each timer: its distribution and the package to install."""
REPEATS = 3
"""Launches of each kernel under Nsight Compute."""
LIMIT_S = 300.0
RANGE = "selftest/clocks()"


def in_child(
    package: str, command: str, arguments: Sequence[str], limit_s: float, print_line: PrintLine = lambda line: None
) -> tuple[Any, float]:
    """Run a hidden command of opbench; return the JSON that it wrote and its wall time, process start included.

    `package` is a key of `TIMER_PACKAGES` that the command needs. Raises EnvironmentFault with the reason if the
    command writes nothing.
    """
    distribution, install = TIMER_PACKAGES[package]
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentFault(
            f"the package {distribution} is not installed; install the package with: pip install {install}",
            kind="missing-package",
            subject=distribution,
        ) from None
    with tempfile.TemporaryDirectory(prefix="opbench-selftest-") as folder:
        path = Path(folder) / "found.json"
        start_s = time.perf_counter()
        argv = (*opbench(command), *arguments, "--out", str(path))
        output = run_tool(argv, ProfileOptions(time_limit_s=limit_s), print_line)
        spent_s = time.perf_counter() - start_s
        if output.returncode or not path.exists():
            last_line = next((line for line in reversed(output.lines) if line.strip()), "no output")
            raise EnvironmentFault(
                f"the process that times kernels with {distribution} ended with exit code {output.returncode}: "
                f"{last_line}. "
                "To see all its output: " + shlex.join(argv[:-2]),
                kind="program-failed",
                subject=distribution,
                value=output.returncode,
            )
        return json.loads(path.read_text()), spent_s


def opbench(command: str) -> tuple[str, ...]:
    """Return the start of a command line for one of opbench's commands."""
    return tuple(python("-m", "opbench", command))


def cell_arguments(cells: Sequence[Cell]) -> list[str]:
    """Return kernels as arguments of a command line."""
    return [text for cell in cells for text in ("--cell", cell.to_text())]


def times_in_child(timer: str, cells: Sequence[Cell], print_line: PrintLine = lambda line: None) -> dict[str, float]:
    """Return the times by "cupti" or "bench"; raises EnvironmentFault with the reason if there are none."""
    samples, _ = in_child(timer, "selftest-target", [timer, *cell_arguments(cells)], LIMIT_S, print_line)
    return median_of(samples)


def times_by_ncu(cells: Sequence[Cell], print_line: PrintLine = lambda profile_line: None) -> dict[str, float]:
    """Return `gpu__time_duration` of each kernel as `opbench profile` measures it: caches flushed, clock free."""
    with tempfile.TemporaryDirectory(prefix="opbench-timer-") as folder:
        target = ProfileTarget(RANGE, (*opbench("selftest-target"), "ncu", *cell_arguments(cells)))
        profile_line = profile_case(target, Path(folder), ProfileOptions(time_limit_s=LIMIT_S), None, print_line)
    return durations(cells, [kernel.get("time_s") for kernel in profile_line["kernels"]])


def durations(cells: Sequence[Cell], times_s: Sequence[float | None]) -> dict[str, float]:
    """Return the median time of each kernel, from kernels launched `REPEATS` times kernel by kernel."""
    if len(times_s) != REPEATS * len(cells):
        raise EnvironmentFault(
            f"ncu recorded {len(times_s)} of {REPEATS * len(cells)} kernels, so its times cannot be assigned; end "
            "other programs that use the GPU (nvidia-smi), then repeat: opbench selftest",
            kind="lost-kernels",
            subject="ncu",
            value=len(times_s),
            allowed=REPEATS * len(cells),
        )
    measured: Mapping[str, list[float]] = {
        cell.name: [t for t in times_s[i * REPEATS : (i + 1) * REPEATS] if t is not None]
        for i, cell in enumerate(cells)
    }
    return {name: stats.median(times) for name, times in measured.items() if times}
