"""Runs NVIDIA's nvbench for Python with its defaults: compared with our engine on one launch, or on one case."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbench.errors import OpbenchError
from opbench.gpu.driver import ExternalStream
from opbench.selftest.reference_timers import register, summaries_by_cell
from opbench.selftest.walltime import ComparedCell, OwnTime
from opbench.timing.clock import Launch, SecondsClock

if TYPE_CHECKING:
    from cuda import bench


@dataclass(frozen=True)
class BenchState:
    """One case in nvbench's JSON."""

    cold_s: float | None
    """Wall time of its cold samples; None if nvbench does not report it."""
    samples_s: list[float]


def compare_engines(
    stream: int,
    cells: Mapping[str, Callable[[], Launch]],
    measure_own: Callable[[Launch], OwnTime],
    limit_s: float,
    now_s: SecondsClock = time.perf_counter,
) -> dict[str, ComparedCell]:
    """Measure each case with both engines, which take turns to go first; nvbench takes cold samples at its defaults.

    Each function of `cells` returns a launch; no case starts after `limit_s`. Return the cases by name.
    """
    names, raced, start_s = list(cells), dict[str, ComparedCell](), now_s()

    def walltime(state: bench.State) -> None:
        cell_number = state.get_int64("Cell")
        name = names[cell_number]
        cell = raced[name] = ComparedCell()
        try:
            if now_s() - start_s > limit_s:
                raise OpbenchError(
                    f"the measurement of this case did not start within {limit_s:g} s", kind="time-limit", value=limit_s
                )
            launch = cells[name]()
            if cell_number % 2:
                cell.own = measure_own(launch)
            state.set_stream(ExternalStream(stream))
            started = now_s()
            state.exec(lambda _: launch(), batched=False)
            cell.bench_s = now_s() - started
            if not cell_number % 2:
                cell.own = measure_own(launch)
        except OpbenchError as error:  # an exception must not pass through nvbench
            raced[name] = ComparedCell(left_out=str(error))
            state.skip(str(error))

    for cell_number, state in _run(walltime, len(names)).items():
        cell = raced[names[cell_number]]
        if not cell.left_out:
            # nvbench's own figure excludes the time that it spends on the samples afterwards.
            cell.bench_samples_s, cell.bench_s = state.samples_s, state.cold_s or cell.bench_s
    return raced


def single_cell_times(stream: int, launch: Launch) -> float:
    """Return the seconds in which `cuda.bench` measures one case with its defaults: cold samples and batches."""
    spent = []

    def walltime(state: bench.State) -> None:
        state.set_stream(ExternalStream(stream))
        started = time.perf_counter()
        state.exec(lambda _: launch())
        spent.append(time.perf_counter() - started)

    _run(walltime, 1)
    return sum(spent)


def _run(function: Callable[[bench.State], None], cells: int) -> dict[int, BenchState]:
    """Run a benchmark over a number of cases with all defaults and read its file."""
    library, benchmark = register(function)
    benchmark.add_int64_axis("Cell", list(range(cells)))
    with tempfile.TemporaryDirectory(prefix="opbench-bench-") as folder:
        path = Path(folder) / "bench.json"
        library.run_all_benchmarks([function.__name__, "--devices", "0", "--jsonbin", str(path)])
        return read_states(json.loads(path.read_text()), Path(folder))


def read_states(document: Mapping[str, Any], folder: Path) -> dict[int, BenchState]:
    """Read each case of nvbench's JSON."""
    result = {}
    for cell, summaries in summaries_by_cell(document).items():
        wall, samples = summaries.get("nv/cold/walltime"), summaries.get("nv/json/bin:nv/cold/sample_times")
        file = _samples_file(folder, samples["filename"]) if samples else None
        samples_s = np.fromfile(file, "<f4").tolist() if file else []
        result[cell] = BenchState(float(wall["value"]) if wall else None, samples_s)
    return result


def _samples_file(folder: Path, name: str) -> Path | None:
    """Return the path of the samples; nvbench names the file by an absolute path or relative to its JSON."""
    return next((path for path in (Path(name), folder / name) if path.is_file()), None)
