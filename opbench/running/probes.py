"""Measure a device's peak rates with probe kernels, and store the peaks by GPU and driver."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opbench import paths
from opbench.errors import EnvironmentFault, UsageError
from opbench.gpu.limits.ceilings import Peaks, read_ceilings
from opbench.kernels.folders import Catalog
from opbench.results.files import Run, read_run, run_file
from opbench.results.result import Result
from opbench.running.devices import ChosenGpu
from opbench.running.options import RunSetup
from opbench.running.progress import OnProgress, Progress
from opbench.running.runner import RunEnded, run_suite
from opbench.running.suite import read_suite

MAX_AGE_S = 7 * 24 * 3600.0
"""Measured peaks are valid for a week: drivers and cooling change slowly."""


PROBE_SUITES = ("ceilings", "sustained")
"""The suites that are measured: bursts, and rates under load. A change to either invalidates stored peaks."""

FINE_STATUSES = ("right", "unsupported")
"""The statuses of probes that do not prevent a measurement of peaks."""


def stored_peaks(device: ChosenGpu | None = None) -> Peaks | None:
    """Return the stored peaks of a GPU (by default the first) with its driver; None without stored or recent ones."""
    path = _path(device)
    try:
        return read_ceilings(path, "") if _is_recent(path) else None
    except (OSError, UsageError):
        return None


def _is_recent(path: Path) -> bool:
    return time.time() - path.stat().st_mtime <= MAX_AGE_S


def _path(device: ChosenGpu | None) -> Path:
    from opbench.gpu.driver import device_key

    suites = "".join(
        (paths.shipped_folder("suites") / f"{name}.toml").read_text(encoding="utf-8") for name in PROBE_SUITES
    )
    probes = hashlib.sha256(suites.encode()).hexdigest()[:8]
    return paths.cache_folder("ceilings") / f"{device_key(device.index if device else 0)}-{probes}.json"


def measure_ceilings(
    out: Path,
    on_progress: OnProgress = lambda progress: None,
    resume: bool = False,
    device: ChosenGpu | None = None,
    sustained: bool = True,
) -> tuple[Run, Peaks]:
    """Run the probes of suites/ceilings.toml in `out`, store the peaks, and return the run and the peaks.

    With `sustained`, also run the probes of suites/sustained.toml. Raises EnvironmentFault when a probe fails.
    """
    burst, under_load = PROBE_SUITES
    run = _run(burst, out, on_progress, resume, device)
    ceilings = peaks_from_probes(run.results)
    if sustained:
        ceilings = with_sustained(ceilings, _run(under_load, out / under_load, on_progress, resume, device).results)
    environment = run.header.environment
    ceilings = replace(ceilings, gpu=environment.gpu, l2_bytes=environment.l2_bytes)
    paths.write_atomically(_path(device), json.dumps(ceilings.to_json(), indent=2).encode())
    return run, ceilings


def _run(name: str, out: Path, on_progress: OnProgress, resume: bool, device: ChosenGpu | None) -> Run:
    suite = read_suite(Path(name), Catalog(), "cuda")
    devices = (device,) if device else ()
    options = RunSetup(backend="cuda", out=out, resume=resume, command=("ceiling",), devices=devices)
    run = run_suite(suite, options, on_progress)
    failed_probes = [r for r in run.results if r.status not in FINE_STATUSES]
    if failed_probes:
        raise EnvironmentFault(
            f"the probe {failed_probes[0].case} is {failed_probes[0].status}: {failed_probes[0].reason}; read the "
            f"results of the probes in {out}, or check the machine: opbench doctor",
            kind="probe-failed",
            subject=failed_probes[0].case,
            value=failed_probes[0].status,
        )
    return run


def ceilings_for_run(folder: Path, on_progress: OnProgress, devices: Sequence[ChosenGpu] = ()) -> list[Peaks]:
    """Return the stored peaks of each named GPU (without names, of the first), or measure the peaks.

    The probes under load are not measured, because their rates are in no percentage and no lower bound. GPUs are
    measured in parallel. The records of the probes go to `folder`.
    """
    if not devices:
        return [stored_peaks() or _measure_in_cache(folder / "ceilings", on_progress)]
    progress_lock, has_ended = threading.Lock(), threading.Event()

    def forward(progress: Progress) -> None:
        with progress_lock:
            if has_ended.is_set():
                raise RunEnded
            on_progress(progress)

    def stored_or_measured(device: ChosenGpu) -> Peaks:
        out = folder / f"ceilings-gpu{device.index}"
        return stored_peaks(device) or _measure_in_cache(out, forward, device)

    with ThreadPoolExecutor(len(devices)) as pool:
        try:
            return list(pool.map(stored_or_measured, devices))
        except BaseException:
            has_ended.set()
            raise


def _measure_in_cache(out: Path, on_progress: OnProgress, device: ChosenGpu | None = None) -> Peaks:
    """Measure the peaks of a GPU in the cache, then move the records of the probes to `out`.

    Each probe's result is on disk before the next probe begins, under the name of the GPU and its driver. If the
    process is killed, the next run on this GPU measures only the other probes.
    """
    path = _path(device)
    records = path.with_suffix("")
    with _only_process(path.with_suffix(".lock"), on_progress):
        if peaks := stored_peaks(device):
            return peaks  # another process has measured them in the meantime
        if not _can_be_completed(records):
            shutil.rmtree(records, ignore_errors=True)
        try:
            _, peaks = measure_ceilings(records, on_progress, resume=True, device=device, sustained=False)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("finished probes are stored; repeat the command to measure the others") from None
        shutil.copytree(records, out, dirs_exist_ok=True)
        shutil.rmtree(records, ignore_errors=True)
        return peaks


@contextlib.contextmanager
def _only_process(lock_path: Path, on_progress: OnProgress) -> Iterator[None]:
    """Wait while another process measures the peaks of the same GPU; a file system without locks is not locked."""
    with lock_path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_progress(Progress("wait", "for the peaks of this GPU, which another opbench measures", 0, 1))
                time.sleep(LOCK_POLL_S)
                continue
            except OSError:
                pass
            break
        yield


LOCK_POLL_S = 0.2


def _can_be_completed(records: Path) -> bool:
    """Return whether an earlier process left records of probes that are readable, recent and without a failure."""
    try:
        return _is_recent(run_file(records)) and all(r.status in FINE_STATUSES for r in read_run(records).results)
    except (OSError, UsageError):
        return False


DRAM_TRAFFIC = 1 << 30
"""Least bytes of a copy whose rate counts as DRAM's: fewer may stay in the L2 cache."""


@dataclass(frozen=True)
class Probe:
    """The kernels that measure one peak: it is the highest rate of `work` among cases of `operators` on `unit`."""

    operators: tuple[str, ...]
    work: Literal["compulsory_bytes", "flops"]
    unit: str = "f32"


PROBES: Mapping[str, Probe] = {
    "dram_bytes_per_s": Probe(("copy",), "compulsory_bytes"),
    "dram_read_bytes_per_s": Probe(("sum",), "compulsory_bytes"),
    "dram_write_bytes_per_s": Probe(("fill",), "compulsory_bytes"),
    "l2_bytes_per_s": Probe(("reread",), "compulsory_bytes"),
    "l1_bytes_per_s": Probe(("shared_reread",), "compulsory_bytes"),
    "fp32_flops_per_s": Probe(("fma",), "flops"),
    "tf32": Probe(("mma", "matmul"), "flops", "tf32"),
    "bf16": Probe(("mma", "linear"), "flops", "bf16"),
    "f16": Probe(("mma", "linear"), "flops", "f16"),
    "s8": Probe(("mma",), "flops", "s8"),
}
"""The probe of each peak. `mma` multiplies from registers and shared memory; the library's matrix product is measured,
too, and is the only probe for tensor cores that no variant of `mma` supports."""


MATRIX_UNITS = ("tf32", "bf16", "f16", "s8")
"""Keys of `PROBES` that are types of factors on the tensor cores."""


def with_sustained(ceilings: Peaks, results: Iterable[Result]) -> Peaks:
    """Return the peaks, with arithmetic rates replaced by those that probes reached in a long run."""
    sustained = peaks_from_probes(results)
    cases = {
        "fp32_sustained_flops_per_s" if name == "fp32_flops_per_s" else f"{name} sustained": case
        for name, case in sustained.cases.items()
    }
    return replace(
        ceilings,
        fp32_sustained_flops_per_s=sustained.fp32_flops_per_s,
        matrix_sustained_flops_per_s=sustained.matrix_flops_per_s,
        cases={**ceilings.cases, **cases},
    )


def peaks_from_probes(results: Iterable[Result]) -> Peaks:
    """Return the peaks: the highest rates that right cases of the operators in `PROBES` reached."""
    measured = [r for r in results if r.status == "right" and r.measurement and r.measurement.median_s]
    rate_and_case = {}
    for name, probe in PROBES.items():
        probe_results = [r for r in measured if r.operator in probe.operators and (r.unit or r.precision) == probe.unit]
        if name.startswith("dram"):
            probe_results = [r for r in probe_results if r.compulsory_bytes >= DRAM_TRAFFIC]
        rate_and_case[name] = _fastest(probe_results, probe.work)
    launch_times_s = [r.measurement.floor_s for r in measured if r.measurement and r.measurement.floor_s]
    rates = {
        name: rate_and_case_of_peak[0] for name, rate_and_case_of_peak in rate_and_case.items() if rate_and_case_of_peak
    }
    matrix_rates = {name: rates.pop(name) for name in MATRIX_UNITS if name in rates}
    peaks = Peaks(
        matrix_flops_per_s=matrix_rates,
        launch_floor_s=min(launch_times_s, default=None),
        cases={
            name: rate_and_case_of_peak[1]
            for name, rate_and_case_of_peak in rate_and_case.items()
            if rate_and_case_of_peak
        },
    )
    return replace(peaks, **rates)  # type: ignore[arg-type]


def _fastest(results: Sequence[Result], work: str) -> tuple[float, str] | None:
    """Return the highest rate of `work` per second and the case that reached it; None without results."""
    rates = [(getattr(r, work) / r.measurement.median_s, r.case) for r in results if r.measurement]
    return max(rates, default=None)
