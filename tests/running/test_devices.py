"""Runs on several devices: who gets what, what is refused, and what the death of a worker costs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench import api
from opbench.backend.base import Gpu
from opbench.backend.environment import Environment
from opbench.checking import backends
from opbench.cli.run import _unused_gpus as unused_gpus
from opbench.errors import EnvironmentFault
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.folders import case_named
from opbench.report import write_report
from opbench.results.files import FILE, Run, read_run
from opbench.results.rows import rows
from opbench.running import devices, probes, runner
from opbench.running.devices import ChosenGpu, choose_devices, share_processors
from opbench.running.dispatch import Dispatch
from opbench.running.options import RunOptions
from opbench.running.progress import OnProgress, Progress
from opbench.running.protocol import BuildModules, CaseStarted, MeasureCases, OpenBackend, unpack
from opbench.running.runner import RunEnded, RunSetup, run_suite, slowest_first
from opbench.running.suite import read_suite
from opbench.running.worker import Worker, WorkerLost
from support.builders.runs import result
from support.builders.runs import run as fabricated_run
from support.builders.two_problems import NAMES, own_variant
from support.checks.errors import refuses
from support.common import CATALOG, RELU
from support.fakes.worker import PEAKS, FakeWorker

TWO = tuple(ChosenGpu(index, f"GPU-{name}", {"DEVICE": name}) for index, name in enumerate("ab"))
SIZES = (7, 1 << 26, 1000, 1 << 25, 31)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """What the driver is said to show."""
    found = [Gpu(index, f"GPU-{index}", "NVIDIA H200", {"SEES": str(index)}) for index in range(3)]
    monkeypatch.setattr(backends, "available_gpus", lambda: found)
    return found


def test_gpus_are_chosen_by_index_and_are_of_one_model(shown: list[Gpu]) -> None:
    assert choose_devices("", "cuda") == ()
    assert [device.uuid for device in choose_devices("all", "cuda")] == ["GPU-0", "GPU-1", "GPU-2"]
    assert choose_devices("2, 0", "cuda")[0] == ChosenGpu(2, "GPU-2", {"SEES": "2"})
    with refuses("no-such-gpu", "--gpus", value="3", allowed=(0, 1, 2)):
        choose_devices("0,3", "cuda")
    with refuses("duplicate-gpu", "--gpus", value="1,1"):
        choose_devices("1,1", "cuda")
    with refuses("backend-without-gpu", "--gpus", value="all"):
        choose_devices("all", "cpu")
    shown[1] = Gpu(1, "GPU-1", "NVIDIA L4", {})
    with refuses("mixed-gpus", value=("NVIDIA H200", "NVIDIA L4", "NVIDIA H200"), allowed="0,2"):
        choose_devices("all", "cuda")
    assert len(choose_devices("0,2", "cuda")) == 2, "what is not chosen may be of any model"


def topology(folder: Path, cores: Sequence[tuple[int, int]]) -> Path:
    """Describe logical processors by socket and core, as the system does."""
    for processor, (socket, core) in enumerate(cores):
        path = folder / f"cpu{processor}" / "topology"
        path.mkdir(parents=True)
        (path / "physical_package_id").write_text(f"{socket}\n")
        (path / "core_id").write_text(f"{core}\n")
    return folder


def test_workers_share_no_core_and_stay_on_their_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second half of the processors are the second threads of the cores of the first half.
    threads = [(socket, core) for _ in range(2) for socket in range(2) for core in range(2)]
    monkeypatch.setattr(devices, "PROCESSORS_FOLDER", topology(tmp_path, threads))
    assert share_processors(range(8), 2) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert share_processors(range(8), 4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert share_processors(range(8), 3) == [{0, 4}, {1, 5}, {2, 3, 6, 7}]
    assert share_processors(range(8), 1) == [frozenset()], "one worker may use all"
    assert share_processors(range(8), 5) == [frozenset()] * 5, "more workers than cores"
    assert share_processors([3, 6], 2) == [{6}, {3}], "only what this process may use"


def test_processors_without_a_description_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROCESSORS_FOLDER", tmp_path)
    assert share_processors(range(4), 2) == [{0, 1}, {2, 3}]


def test_chosen_gpus_have_disjoint_processors(
    shown: list[Gpu], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "PROCESSORS_FOLDER", tmp_path)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: set(range(6)))
    shares = [device.processors for device in choose_devices("all", "cuda")]
    assert shares == [{0, 1}, {2, 3}, {4, 5}]
    assert [device.processors for device in choose_devices("1", "cuda")] == [frozenset()]


def test_a_worker_runs_on_its_processors_only(tmp_path: Path) -> None:
    processor = min(os.sched_getaffinity(0))
    worker = Worker(OpenBackend(""), tmp_path / "worker.log", {}, frozenset({processor}))
    try:
        worker.start()
        assert worker._process is not None
        threads = Path(f"/proc/{worker._process.pid}/task").iterdir()
        assert {tuple(os.sched_getaffinity(int(thread.name))) for thread in threads} == {(processor,)}
    finally:
        worker.stop()


def test_a_run_names_the_gpus_that_it_leaves_unused(shown: list[Gpu], tmp_path: Path) -> None:
    problems = ["(n=7)", "(n=1000)"]
    run = fabricated_run([result("scalar", 1e-3, problem=problem) for problem in problems])
    on_gpu = replace(run, header=replace(run.header, backend="cuda", environment=Environment(gpu="NVIDIA H200")))
    assert "--gpus all" in unused_gpus(RunOptions(), on_gpu)
    assert not unused_gpus(RunOptions(gpus="0"), on_gpu)
    assert not unused_gpus(RunOptions(), replace(on_gpu, results=on_gpu.results[:1]))
    del shown[1:]
    assert not unused_gpus(RunOptions(), on_gpu)


class OnDevice(FakeWorker):
    """Answers as a worker on the device that its environment names."""

    times = {"scalar": 2e-3, "vec4": 1e-3, "streaming_vec4": 1e-3, "vec4_streaming": 1e-3}
    driver = {"a": "580", "b": "580"}
    dies_at: Counter[str] = Counter()
    """How often a worker dies while it measures a problem of so many elements."""
    measured: list[tuple[str, int, int]] = []
    """By which device a problem of how many elements was measured, with how many cases."""

    def start(self) -> Environment:
        name = self._variables["DEVICE"]
        return Environment(gpu="Fake GPU", uuid=f"GPU-{name}", driver=self.driver[name])

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        if isinstance(request, BuildModules):
            return None
        if isinstance(request, MeasureCases):
            size = int(request.cases[0].axes["n"])
            self.measured.append((self._variables["DEVICE"], size, len(request.cases)))
            if self.dies_at[str(size)]:
                self.dies_at[str(size)] -= 1
                on_notification(CaseStarted(unpack(CATALOG, request.cases[0]).name))
                raise WorkerLost("the process running it died (signal SIGKILL)")
        return super().ask(request, limit_s, on_notification)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> type[OnDevice]:
    """A fresh fake in place of the worker."""
    ladder = [variant.name for variant in CATALOG.variants("relu")]
    kind = type("Fresh", (OnDevice,), {"measured": [], "dies_at": Counter(), "driver": dict(OnDevice.driver)})
    kind.times = {name: 1e-3 * (1 + number) for number, name in enumerate(ladder)}
    monkeypatch.setattr(runner, "Worker", kind)
    return kind


def run_on_two(folder: Path, told: list[Progress] | None = None, **options: Any) -> Run:
    """Run relu's default configs at several sizes on two fake devices, of which the second has half the bandwidth."""
    problems = ", ".join(f"{{ n = {n} }}" for n in SIZES)
    (folder / "s.toml").write_text(
        "[timing]\nbudget_s = 0.02\nmax_samples = 20\n"
        f'[[run]]\noperator = "relu"\nvariants = ["scalar", "vec4"]\nconfigs = "default"\nproblems = [{problems}]\n'
    )
    suite = read_suite(folder / "s.toml", CATALOG, "cuda")

    def ceilings(devices: Sequence[ChosenGpu]) -> list[Peaks]:
        return [replace(PEAKS, dram_bytes_per_s=4e12 / (1 + d.index), launch_floor_s=1e-6) for d in devices]

    found = RunSetup("cuda", folder / "out", devices=TWO, **options)
    tell = told.append if told is not None else lambda progress: None
    return run_suite(suite, found, tell, ceilings)


def test_ceilings_of_all_devices_are_measured_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=120)

    def measured(out: Path, tell: OnProgress, device: ChosenGpu) -> Peaks:
        both.wait()
        return Peaks(device.uuid, origin=out.name)

    monkeypatch.setattr(probes, "stored_peaks", lambda device=None: None)
    monkeypatch.setattr(probes, "_measure_in_cache", measured)
    found = probes.ceilings_for_run(tmp_path, lambda progress: None, TWO)
    assert found == [Peaks(d.uuid, origin=f"ceilings-gpu{d.index}") for d in TWO]


def test_when_one_devices_ceilings_fail_the_others_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, begun = threading.Event(), threading.Event()

    def measured(out: Path, tell: OnProgress, device: ChosenGpu) -> Peaks:
        if device.index == 0:
            assert begun.wait(120)
            raise EnvironmentFault("a probe failed", kind="probe-failed")
        try:
            for _ in range(2000):
                tell(Progress("measure", "a probe", 0, 1))
                begun.set()
                time.sleep(0.01)
        except RunEnded:
            ended.set()
            raise
        return Peaks()

    monkeypatch.setattr(probes, "stored_peaks", lambda device=None: None)
    monkeypatch.setattr(probes, "_measure_in_cache", measured)
    with refuses("probe-failed", error=EnvironmentFault):
        probes.ceilings_for_run(tmp_path, lambda progress: None, TWO)
    assert ended.is_set()


def test_a_problem_goes_whole_to_one_device_and_says_to_which(tmp_path: Path, on_device: type[OnDevice]) -> None:
    run = run_on_two(tmp_path)
    assert run.finished and run == read_run(tmp_path / "out")
    assert sorted(n for _, n, _ in on_device.measured) == sorted(SIZES), "each problem once"
    by_problem = {r.problem: {o.device for o in run.results if o.problem == r.problem} for r in run.results}
    assert all(len(devices) == 1 for devices in by_problem.values()), "a ranking is of one device"
    assert on_device.measured[0][1] in (1 << 26, 1 << 25), "the longest first"
    assert run.header.environment.uuid == "GPU-a, GPU-b"
    assert {name: device.ceilings and device.ceilings.dram_bytes_per_s for name, device in run.devices.items()} == {
        "GPU-a": 4e12,
        "GPU-b": 2e12,
    }
    # Shares of peak are of the device that a case ran on.
    for row, done in zip(rows(run), run.results, strict=True):
        assert row.device == {"GPU-a": "GPU 0", "GPU-b": "GPU 1"}[done.device]
        peak = {"GPU-a": 4e12, "GPU-b": 2e12}[done.device]
        assert row.peak_share == pytest.approx(((row.times and row.times.bytes_per_s) or 0) / peak)
    page = write_report(run, tmp_path / "out")[0].read_text()
    assert "GPU-a" in page and "on GPU 1" in page and "Devices; each problem ran on one of them" in page


def test_a_lost_workers_problem_is_measured_again_whole_and_judged_once(
    tmp_path: Path, on_device: type[OnDevice]
) -> None:
    on_device.dies_at[str(1 << 26)] = 1
    told: list[Progress] = []
    run = run_on_two(tmp_path, told)
    assert {r.status for r in run.results} == {"right"} and run.finished
    again = [count for _, n, count in on_device.measured if n == 1 << 26]
    assert again == [2, 2], "whole, both times"
    assert [p.phase for p in told].count("lost") == 1
    lines = [json.loads(line) for line in (tmp_path / "out" / FILE).read_text().splitlines()]
    judged = Counter(line["case"] for line in lines if line["type"] == "result")
    assert set(judged.values()) == {1} and len(judged) == 2 * len(SIZES)


def test_a_case_at_which_two_workers_died_is_failed_and_the_others_are_measured(
    tmp_path: Path, on_device: type[OnDevice]
) -> None:
    on_device.dies_at[str(1 << 26)] = 2
    run = run_on_two(tmp_path)
    bad = {r.case: r.reason for r in run.results if r.status != "right"}
    assert list(bad) == [f"relu/scalar[BLOCK=256](n={1 << 26})"]
    assert "while measured: the process running it died" in next(iter(bad.values()))
    assert [count for _, n, count in on_device.measured if n == 1 << 26] == [2, 2, 1]
    # Completed: what failed stands, and no device is asked for anything.
    on_device.measured.clear()
    assert run_on_two(tmp_path, resume=True).finished and on_device.measured == []


def test_devices_that_are_not_alike_are_refused_with_what_was_seen(tmp_path: Path, on_device: type[OnDevice]) -> None:
    on_device.driver["b"] = "590"
    with refuses("devices-differ", "driver", value={"GPU 0": "580", "GPU 1": "590"}, error=EnvironmentFault):
        run_on_two(tmp_path)
    assert not (tmp_path / "out" / FILE).read_bytes(), "refused before anything is written"


def test_real_workers_die_and_are_replaced(tmp_path: Path) -> None:
    """A kernel that kills its process the first time only costs nothing; one that always does costs its own case."""
    include = "// ///\n#include <signal.h>\n#include <stdio.h>\n"
    (tmp_path / "alive").touch()
    once = f'if (n == 7 && i == 0 && rename("{tmp_path}/alive", "{tmp_path}/dead") == 0) raise(9);\n    if (i < n)'
    own_variant(tmp_path, RELU.replace("// ///\n", include, 1).replace("if (i < n)", once), "once")
    own_variant(tmp_path, RELU.replace("// ///\n", include, 1).replace("const int i", "raise(9);\n    const int i"))
    path = tmp_path / "two.toml"
    path.write_text(
        '[[run]]\noperator = "relu"\nvariants = ["scalar", "once", "zz_last"]\nconfigs = "default"\n'
        "problems = [{ n = 7 }, { n = 1000 }]\n"
    )
    suite, roots, _ = api.expand_target(path, "cpu", [], [tmp_path / "mine"])
    told: list[Progress] = []
    options = RunSetup(out=tmp_path / "out", measure=False, roots=roots, devices=TWO)
    run = run_suite(suite, options, told.append)
    status = {r.case: r.status for r in run.results}
    assert run.finished and set(status) == {case.name for case in suite.cases}
    assert {case for case, s in status.items() if s != "right"} == {NAMES[2], NAMES[5]}
    assert all("died (signal SIGKILL)" in r.reason for r in run.results if r.status != "right")
    assert (tmp_path / "dead").exists() and [p.phase for p in told].count("lost") == 3


def test_what_is_dealt_out_comes_back_whatever_dies() -> None:
    """The state of a run alone: judged cases stay judged, the rest of a lost problem is next."""
    dispatch: Dispatch[str] = Dispatch(lambda case: case)
    dispatch.add([["a1", "a2", "a3"], ["b1"], ["c1"]])
    assert dispatch.assign("x") == ["a1", "a2", "a3"] and dispatch.assign("y") == ["b1"]
    dispatch.remove_judged("x", ["a1"])
    dispatch.set_current_case("x", "a2")
    assert dispatch.return_lost("x") is None and dispatch.assign("z") == ["a2", "a3"], "before what nobody had yet"
    dispatch.set_current_case("z", "a2")
    assert dispatch.return_lost("z") == "a2", "two died there"
    assert dispatch.assign("y2") == ["a3"] and dispatch.assign("x2") == ["c1"] and dispatch.assign("z2") is None
    for worker, cases in (("y", ["b1"]), ("y2", ["a3"]), ("x2", ["c1"])):
        assert not dispatch.is_done
        dispatch.remove_judged(worker, cases)
        dispatch.finish(worker)
    assert dispatch.is_done and dispatch.return_lost("nobody") is None


def test_what_may_take_longest_is_begun_first() -> None:
    """A few cases of a large product outlast many of a small one; of like ones those with more cases."""
    suite = [case_named(f"matmul/naive_col(m={n},n={n},k={n})") for n in (4096, 64)]
    large, small = [suite[0]] * 2, [suite[1]] * 60
    bytes_only = [case_named("relu/scalar(n=268435456)")] * 3
    assert slowest_first([small, bytes_only, large]) == [large, small, bytes_only]
    assert slowest_first([small[:5], small[:50]]) == [small[:50], small[:5]]
