"""The hidden command that times opbench's engine and `cuda.bench` on the same launches for `opbench selftest`."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opbench.records import to_json

if TYPE_CHECKING:
    from opbench.gpu.driver import CudaBackend
    from opbench.selftest.walltime import ComparedCell, OwnTime
    from opbench.timing.clock import Clock


@click.command("selftest-race", hidden=True)
@click.argument("mode", type=click.Choice(["race", "alone"]))
@click.option("--case", "names", multiple=True, required=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def selftest_race_command(mode: str, names: tuple[str, ...], out: Path) -> None:
    """Measure cases with both engines, or one case by `cuda.bench` alone; `opbench selftest` runs this command."""
    from opbench.gpu import driver as cuda
    from opbench.kernels.folders import case_named

    backend = cuda.CudaBackend()
    if mode == "alone":
        from opbench.checking.binding import bind_unchecked
        from opbench.selftest.nvbench import single_cell_times

        launch, _ = bind_unchecked(backend, case_named(names[0]))
        out.write_text(json.dumps({"bench_s": single_cell_times(backend.stream_handle, launch)}))
        return
    out.write_text(json.dumps(to_json(compare_cells(backend, names))))


def compare_cells(backend: CudaBackend, names: tuple[str, ...]) -> dict[str, ComparedCell]:
    """Measure each case's launch with both engines, on its own inputs."""
    from opbench.checking.checking import Session
    from opbench.kernels.folders import case_named
    from opbench.selftest.nvbench import compare_engines
    from opbench.selftest.walltime import RACE_LIMIT_S

    session, clock = Session(backend), backend.clock()
    clock.timing_offset_s()  # calibrated once per process, like the floor, and not part of either engine's time
    clock.empty_kernel_s()

    def prepare_launch(name: str) -> Callable[[], None]:
        launch = session.launch(case_named(name))
        clock.sample(launch, hold_stream=False)  # loads the module
        return launch

    cells = {name: functools.partial(prepare_launch, name) for name in names}
    return compare_engines(backend.stream_handle, cells, functools.partial(time_with_opbench, clock), RACE_LIMIT_S)


def time_with_opbench(
    clock: Clock, launch: Callable[[], None], now_s: Callable[[], float] = time.perf_counter
) -> OwnTime:
    """Measure one case with our engine; return the wall time with warm-up, and the interval that it reached."""
    from opbench.selftest.walltime import RACE, OwnTime
    from opbench.timing.sampling import measure

    start_s = now_s()
    measurement = measure(clock, {"cell": launch}, RACE, now_s=now_s)["cell"]
    spent_s = now_s() - start_s
    relative_half_width = (measurement.high_s - measurement.low_s) / 2 / measurement.median_s
    return OwnTime(spent_s, relative_half_width, len(measurement.samples_s), measurement.stop_reason)
