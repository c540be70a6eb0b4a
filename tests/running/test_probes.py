"""Peaks that are measured before a run: what a killed, failed or parallel measurement leaves."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu import driver
from opbench.gpu.limits.ceilings import Peaks
from opbench.results.files import FILE, read_run
from opbench.running import probes, runner
from opbench.running.probes import MAX_AGE_S, ceilings_for_run, measure_ceilings, stored_peaks
from opbench.running.progress import Progress, silent
from opbench.running.protocol import MeasureCases
from support.checks.errors import refuses
from support.common import ROOT, until
from support.fakes.worker import FakeWorker

KEY = "GPU-a-driver-580"


class AnyTime(dict[str, float]):
    """The same time for each variant."""

    def __missing__(self, name: str) -> float:
        return 1e-3


class ProbeWorker(FakeWorker):
    """Measure probes, and count the measured problems by operator."""

    times = AnyTime()
    measured: Counter[str] = Counter()
    stops_at = ""
    """The operator at which a measurement does not end."""

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        if isinstance(request, MeasureCases):
            self.measured[request.cases[0].operator] += 1
            if request.cases[0].operator == self.stops_at:
                time.sleep(600)
        return super().ask(request, limit_s, on_notification)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[ProbeWorker]:
    """A fresh fake in place of the worker, an empty cache, and a GPU with a driver."""
    kind = type("Fresh", (ProbeWorker,), {"measured": Counter()})
    monkeypatch.setattr(runner, "Worker", kind)
    monkeypatch.setattr(driver, "device_key", lambda ordinal=0: KEY)
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path / "cache"))
    return kind


def records() -> Path:
    """Return the file of an unfinished measurement."""
    return probes._path(None).with_suffix("") / FILE


def start_and_kill(tmp_path: Path, stops_at: str) -> None:
    """Measure in another process until it reaches an operator, and kill the process there."""
    code = (
        "import sys; from pathlib import Path; from opbench.gpu import driver;"
        "from opbench.running import probes, runner;"
        "from running.test_probes import KEY, ProbeWorker; ProbeWorker.stops_at = sys.argv[2];"
        "runner.Worker = ProbeWorker; driver.device_key = lambda ordinal=0: KEY;"
        "probes.ceilings_for_run(Path(sys.argv[1]), lambda progress: None)"
    )
    folders = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "killed"), stops_at],
        env={**os.environ, "PYTHONPATH": folders},
    )
    try:
        until(lambda: records().exists() and b'"reread' in records().read_bytes())
    finally:
        process.kill()
        process.wait()


def test_a_killed_measurement_is_completed_by_the_next_run_in_another_folder(
    worker: type[ProbeWorker], tmp_path: Path
) -> None:
    start_and_kill(tmp_path, "sum")
    assert stored_peaks() is None, "half of the probes give no peaks"
    path = records()
    path.write_bytes(path.read_bytes()[:-20])  # killed in the middle of a line
    (peaks,) = ceilings_for_run(tmp_path / "next", silent)
    assert worker.measured["copy"] == 0 and worker.measured["sum"] == 1, "only what was not measured"
    assert peaks.dram_bytes_per_s and peaks.dram_read_bytes_per_s and peaks == stored_peaks()
    run = read_run(tmp_path / "next" / "ceilings")
    assert run.finished and {result.operator for result in run.results} >= {"copy", "sum", "mma"}
    assert not path.exists(), "a finished measurement is not completed a second time"


def test_stored_peaks_are_not_measured_again(worker: type[ProbeWorker], tmp_path: Path) -> None:
    first = ceilings_for_run(tmp_path / "first", silent)
    worker.measured.clear()
    assert ceilings_for_run(tmp_path / "second", silent) == first and not worker.measured


def test_a_run_measures_no_probe_under_load_but_the_command_does(worker: type[ProbeWorker], tmp_path: Path) -> None:
    (peaks,) = ceilings_for_run(tmp_path / "run", silent)
    assert peaks.fp32_flops_per_s and peaks.fp32_sustained_flops_per_s is None
    _, complete = measure_ceilings(tmp_path / "complete")
    assert complete.fp32_sustained_flops_per_s and complete == stored_peaks()
    assert read_run(tmp_path / "complete" / "sustained").finished


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"dram_bytes_per_s": "fast"}', b"\xff\xfe"])
def test_corrupt_peaks_are_measured_again(worker: type[ProbeWorker], tmp_path: Path, content: bytes) -> None:
    probes._path(None).write_bytes(content)
    (peaks,) = ceilings_for_run(tmp_path / "run", silent)
    assert worker.measured["copy"] == 1 and peaks == stored_peaks()


@pytest.mark.parametrize("content", [b"", b"no JSON\n", b'{"type":"run","format":99}\n', b"\xff\n"])
def test_corrupt_records_of_probes_are_discarded(worker: type[ProbeWorker], tmp_path: Path, content: bytes) -> None:
    records().parent.mkdir(parents=True)
    records().write_bytes(content)
    ceilings_for_run(tmp_path / "run", silent)
    assert worker.measured["copy"] == 1 and read_run(tmp_path / "run" / "ceilings").finished


def test_old_records_of_probes_are_discarded(worker: type[ProbeWorker], tmp_path: Path) -> None:
    start_and_kill(tmp_path, "sum")
    then = time.time() - 2 * MAX_AGE_S
    os.utime(records(), (then, then))
    ceilings_for_run(tmp_path / "run", silent)
    assert worker.measured["copy"] == 1


def test_another_driver_or_gpu_has_its_own_peaks(
    worker: type[ProbeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceilings_for_run(tmp_path / "first", silent)
    for key in ("GPU-a-driver-590", "GPU-b-driver-580"):
        monkeypatch.setattr(driver, "device_key", lambda ordinal=0, key=key: key)
        assert stored_peaks() is None
        worker.measured.clear()
        ceilings_for_run(tmp_path / key, silent)
        assert worker.measured["copy"] == 1


def test_a_probe_that_failed_is_measured_again(worker: type[ProbeWorker], tmp_path: Path) -> None:
    worker.wrong = frozenset({"chains_8"})
    with refuses("probe-failed", value="wrong", error=EnvironmentFault):
        ceilings_for_run(tmp_path / "first", silent)
    assert stored_peaks() is None
    worker.wrong = frozenset()
    assert ceilings_for_run(tmp_path / "second", silent)[0].fp32_flops_per_s


def test_a_second_process_waits_for_the_peaks_of_the_first(worker: type[ProbeWorker], tmp_path: Path) -> None:
    waits, is_waiting, found = list[Progress](), threading.Event(), list[Peaks]()

    def on_progress(progress: Progress) -> None:
        waits.append(progress)
        is_waiting.set()

    lock_path = probes._path(None).with_suffix(".lock")
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.extend(ceilings_for_run(tmp_path / "second", on_progress)))
        thread.start()
        assert is_waiting.wait(60)
        probes._path(None).write_text(json.dumps(Peaks("Fake GPU", dram_bytes_per_s=1e12).to_json()))
    thread.join(60)
    assert waits[0].phase == "wait" and found[0].dram_bytes_per_s == 1e12 and not worker.measured
