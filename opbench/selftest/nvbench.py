"""Runs NVIDIA's nvbench for Python with its defaults: compared with our engine on one launch, or on one cell."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opbench.errors import OpbenchError
from opbench.records import JSON
from opbench.selftest.reference_timers import StreamHandle, register
from opbench.timing.clock import Launch, Now

if TYPE_CHECKING:
    from cuda import bench


def race(
    stream: int,
    cells: Mapping[str, Callable[[], Launch]],
    ours: Callable[[Launch], dict[str, JSON]],
    limit_s: float,
    now: Now = time.perf_counter,
) -> dict[str, dict[str, JSON]]:
    """Measure each cell with both engines, which take turns to go first; nvbench takes cold samples at its defaults.

    Each function of `cells` returns a launch; no cell starts after `limit_s`. Return by name the figures of `ours` with
    bench_s and bench_samples_s, or the reason under "left_out".
    """
    names, taken, began = list(cells), dict[str, dict[str, JSON]](), now()

    def walltime(state: bench.State) -> None:
        number = state.get_int64("Cell")
        name, found = names[number], dict[str, JSON]()
        taken[name] = found
        try:
            if now() - began > limit_s:
                raise OpbenchError(f"not begun within {limit_s:g} s")
            launch = cells[name]()
            if number % 2:
                found |= ours(launch)
            state.set_stream(StreamHandle(stream))
            started = now()
            state.exec(lambda _: launch(), batched=False)
            found["bench_s"] = now() - started
            if not number % 2:
                found |= ours(launch)
        except OpbenchError as error:  # an exception must not pass through nvbench
            taken[name] = {"left_out": str(error)}
            state.skip(str(error))

    for cell, state in _run(walltime, len(names)).items():
        found = taken[names[cell]]
        if "left_out" not in found:
            # nvbench's own figure excludes the time that it spends on the samples afterwards.
            found |= {"bench_samples_s": state["samples_s"], "bench_s": state["cold_s"] or found["bench_s"]}
    return taken


def single_cell_times(stream: int, launch: Launch) -> float:
    """Return the seconds in which `cuda.bench` measures one cell with its defaults: cold samples and batches."""
    spent = []

    def walltime(state: bench.State) -> None:
        state.set_stream(StreamHandle(stream))
        started = time.perf_counter()
        state.exec(lambda _: launch())
        spent.append(time.perf_counter() - started)

    _run(walltime, 1)
    return sum(spent)


def _run(function: Callable[[bench.State], None], cells: int) -> dict[int, dict[str, JSON]]:
    """Run a benchmark over a number of cells with all defaults and read its file."""
    library, benchmark = register(function)
    benchmark.add_int64_axis("Cell", list(range(cells)))
    with tempfile.TemporaryDirectory(prefix="opbench-bench-") as folder:
        path = Path(folder) / "bench.json"
        library.run_all_benchmarks([function.__name__, "--devices", "0", "--jsonbin", str(path)])
        return read_states(json.loads(path.read_text()), Path(folder))


def read_states(document: Mapping[str, Any], folder: Path) -> dict[int, dict[str, JSON]]:
    """Read each cell of nvbench's JSON: cold_s, the wall time of its cold samples or None, and samples_s."""
    found = {}
    for state in document["benchmarks"][0]["states"]:
        cell = next(int(axis["value"]) for axis in state["axis_values"] if axis["name"] == "Cell")
        summaries = {
            summary["tag"]: {entry["name"]: entry["value"] for entry in summary["data"]}
            for summary in state.get("summaries") or ()
        }
        wall, kept = summaries.get("nv/cold/walltime"), summaries.get("nv/json/bin:nv/cold/sample_times")
        file = _samples_file(folder, kept["filename"]) if kept else None
        samples = np.fromfile(file, "<f4").tolist() if file else []
        found[cell] = {"cold_s": float(wall["value"]) if wall else None, "samples_s": samples}
    return found


def _samples_file(folder: Path, name: str) -> Path | None:
    """Return the path of the samples; nvbench names the file by an absolute path or relative to its JSON."""
    return next((path for path in (Path(name), folder / name) if path.is_file()), None)
