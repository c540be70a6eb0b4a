"""Reference timers for the self-test: CUPTI's activity records and NVIDIA's nvbench for Python.

Each runs in its own process, because CUPTI slows launches down while it is attached, and nvbench takes over the
process's arguments and output.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opbench.errors import EnvironmentFault
from opbench.gpu.driver import ExternalStream
from opbench.timing.clock import Launch

if TYPE_CHECKING:
    from cuda import bench

    from opbench.gpu.driver.clock import CudaClock

SAMPLES = 40
BENCH_TIMEOUT_S = 3.0
"""Kernels of a few µs never meet nvbench's own stopping rule and would run until its limit of 15 s."""
BUFFER_BYTES = 8 << 20


def cupti_times(clock: CudaClock, launches: Mapping[str, Launch], samples: int = SAMPLES) -> dict[str, list[float]]:
    """Return each kernel's time at each cold sample, from CUPTI's records of concurrent kernels."""
    try:
        from cupti import cupti
    except ImportError as error:
        raise EnvironmentFault(
            f"the package cupti-python cannot be imported ({error}); install the package with: pip install "
            "cupti-python",
            kind="missing-package",
            subject="cupti-python",
        ) from None
    records: list[tuple[str, int, int]] = []

    def completed(activities: list[Any]) -> None:
        records.extend((str(a.name), int(a.start), int(a.end)) for a in activities)

    def recorded(launch: Launch, count: int) -> list[tuple[str, int, int]]:
        records.clear()
        for _ in range(count):
            clock.sample(launch)
        cupti.activity_flush_all(1)
        return sorted(records, key=lambda record: record[1])

    for launch in launches.values():
        clock.sample(launch, hold_stream=False)
    try:
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), completed)
        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
    except cupti.cuptiError as error:
        raise EnvironmentFault(
            f"CUPTI refuses to record kernels: {error}; end any profiler that uses this GPU (nvidia-smi), or check the "
            "permission for GPU counters with: opbench doctor",
            kind="cupti",
            subject="CUPTI",
            value=str(error),
        ) from None
    try:
        recorded(clock.launch_empty_kernel, 3)
        own_kernels = [name for name, _, _ in recorded(lambda: None, 1)]
        position = launch_position([name for name, _, _ in recorded(clock.launch_empty_kernel, 1)], own_kernels)
        return {
            name: kernel_times(recorded(launch, samples), samples, len(own_kernels), position)
            for name, launch in launches.items()
        }
    finally:
        cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)


def launch_position(names: Sequence[str], own_kernels: Sequence[str]) -> int:
    """Return how many of the clock's own kernels come before the measured launch in a sample."""
    for position in range(len(own_kernels) + 1):
        if [*names[:position], *names[position + 1 :]] == list(own_kernels) and names[
            position : position + 1
        ] != own_kernels[position : position + 1]:
            return position
    raise EnvironmentFault(
        f"CUPTI recorded the kernels {', '.join(names)}, where {', '.join(own_kernels)} and one more were expected; "
        "repeat: opbench selftest",
        kind="other-kernels",
        subject="CUPTI",
    )


def kernel_times(
    records: Sequence[tuple[str, int, int]], samples: int, own_count: int, kernels_before: int
) -> list[float]:
    """Return the seconds of each sample's measured kernels, from records (name, start, end) sorted by start.

    The clock itself launches `own_count` kernels in each sample, `kernels_before` of them before the measured ones.
    A time runs from the first measured start to the last measured end. Names cannot separate the two groups: both may
    launch the same kernel.
    """
    records_per_sample, remainder = divmod(len(records), samples)
    if records_per_sample <= own_count or remainder:
        raise EnvironmentFault(
            f"CUPTI recorded {len(records)} kernels in {samples} samples, so CUPTI lost some kernels; repeat: opbench "
            "selftest",
            kind="lost-kernels",
            subject="CUPTI",
            value=len(records),
            allowed=samples,
        )
    groups = (
        records[offset + kernels_before : offset + kernels_before + records_per_sample - own_count]
        for offset in range(0, len(records), records_per_sample)
    )
    return [(group[-1][2] - group[0][1]) / 1e9 for group in groups]


def bench_times(stream: int, launches: Mapping[str, Launch]) -> dict[str, list[float]]:
    """Return the cold median of `cuda.bench` for each launch; launches must use the given stream."""
    names = list(launches)

    def selftest(state: bench.State) -> None:
        launch = launches[names[state.get_int64("Cell")]]
        state.set_stream(ExternalStream(stream))
        state.exec(lambda _: launch(), batched=False)

    library, benchmark = register(selftest)
    benchmark.add_int64_axis("Cell", list(range(len(names))))
    benchmark.set_timeout(BENCH_TIMEOUT_S)
    with tempfile.TemporaryDirectory(prefix="opbench-bench-") as folder:
        path = Path(folder) / "bench.json"
        library.run_all_benchmarks(["selftest", "--devices", "0", "--min-samples", str(SAMPLES), "--json", str(path)])
        seconds_by_cell = read_bench(json.loads(path.read_text()))
    return {names[cell]: [seconds] for cell, seconds in seconds_by_cell.items()}


def register(function: Callable[[bench.State], None]) -> tuple[ModuleType, bench.Benchmark]:
    """Return `cuda.bench` and a benchmark that calls a function; raises EnvironmentFault if the package is missing."""
    try:
        from cuda import bench

        return bench, bench.register(function)  # loads nvbench's library, so it may raise ImportError, too
    except ImportError as error:
        raise EnvironmentFault(
            f"the package cuda-bench cannot be imported: {error}; install the package with: pip install "
            "'cuda-bench[cu13]'",
            kind="missing-package",
            subject="cuda-bench",
        ) from None


def summaries_by_cell(document: Mapping[str, Any]) -> dict[int, dict[str, dict[str, str]]]:
    """Return from nvbench's JSON the values of each case's summaries, by tag and name."""
    return {
        next(int(axis["value"]) for axis in state["axis_values"] if axis["name"] == "Cell"): {
            summary["tag"]: {entry["name"]: entry["value"] for entry in summary["data"]}
            for summary in state.get("summaries") or ()
        }
        for state in document["benchmarks"][0]["states"]
    }


def read_bench(document: Mapping[str, Any]) -> dict[int, float]:
    """Read each case's median cold time from nvbench's JSON, or the mean if there is no median."""
    times: dict[int, float] = {}
    for cell, summaries in summaries_by_cell(document).items():
        if time := summaries.get("nv/cold/time/gpu/median") or summaries.get("nv/cold/time/gpu/mean"):
            times[cell] = float(time["value"])
    return times
