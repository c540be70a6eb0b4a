"""The pytest plugin in a pytest of its own, on a stub clock, and where there is no GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.common import RELU, ROOT

STUB = """
import opbench.checking.backends
from opbench.timing.clock import DeviceState, Sample

opened = []

class Clock:
    timer = "stub"
    count = 0

    def sample(self, launch, hold_stream=True):
        launch()
        self.count += 1
        return Sample(1e-3 + 1e-6 * (self.count % 3))

    def device_state(self):
        return DeviceState(1.98e9)

    def empty_kernel_s(self):
        return 2e-6

    def timing_offset_s(self):
        return None

def open_backend(name):
    backend = open_cpu("cpu")
    backend.clock, backend.l2_bytes = lambda mode: Clock(), 1 << 20
    opened.append(name)
    assert opened == ["cuda"], "opened once for all tests"
    return backend

open_cpu, opbench.checking.backends.open_backend = opbench.checking.backends.open_backend, open_backend
"""

NO_GPU = """
import opbench.checking.backends
from opbench.errors import EnvironmentFault

def open_backend(name):
    raise EnvironmentFault("no NVIDIA driver here; opbench doctor")

opbench.checking.backends.open_backend = open_backend
"""

TESTS = """
import pytest
from opbench.timing.sampling import TimingOptions

QUICK = TimingOptions(warmup_s=0, max_samples=12, budget_s=5, target=0)

def test_right(opbench_benchmark, benchmark):
    found = opbench_benchmark("relu/scalar[BLOCK=256](n=1000)", timing=QUICK)
    assert benchmark.disabled or (found.timer.startswith("stub") and len(found.samples_s) == 12)

@pytest.mark.benchmark(group="mine")
def test_grouped(opbench_benchmark):
    opbench_benchmark("relu/scalar[BLOCK=256](n=7)", timing=QUICK)

def test_wrong(opbench_benchmark):
    opbench_benchmark("relu/mine(n=7)", variants=["own"])

def test_unknown(opbench_benchmark):
    opbench_benchmark("relu/scaler(n=7)")

def test_unsupported(opbench_benchmark):
    opbench_benchmark("relu/torch(n=7)")
"""


def run_pytest(folder: Path, conftest: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests above in a folder of their own, warnings being errors."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(TESTS)
    (folder / "own" / "relu").mkdir(parents=True)
    (folder / "own" / "relu" / "mine.cu").write_text(RELU.replace(": 0.0f", ": 1.0f"))
    # Named one by one, so that it does not matter whether this opbench is installed with its entry point.
    plugins = ["-p", "pytest_benchmark.plugin", "-p", "opbench.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-rsf", "-W", "error", *plugins, *options]
    # Not the variables of this pytest: under xdist the inner one would leave benchmarks out.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_times_of_the_device_clock_reach_the_table(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, STUB, "--benchmark-json=out.json")
    assert done.returncode == 1 and "2 failed, 2 passed, 1 skipped in" in done.stdout, done.stdout
    assert "wrong-result: out[" in done.stdout and "did you mean 'scalar'?" in done.stdout
    assert "unsupported: calls a GPU library" in done.stdout and "Traceback" not in done.stdout
    written = {entry["name"]: entry for entry in json.loads((tmp_path / "out.json").read_text())["benchmarks"]}
    assert set(written) == {"test_right", "test_grouped"}, "a wrong kernel has no time"
    right = written["test_right"]
    assert sorted(set(right["stats"]["data"])) == [1e-3, 1e-3 + 1e-6, 1e-3 + 2e-6] and right["stats"]["rounds"] == 12
    assert (
        right["extra_info"]["case"] == "relu/scalar[BLOCK=256](n=1000)" and written["test_grouped"]["group"] == "mine"
    )
    assert right["options"]["timer"] == "opbench_gpu_clock"


def test_disabled_benchmarks_are_checked_all_the_same(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, STUB, "--benchmark-disable")
    assert "2 failed, 2 passed, 1 skipped in" in done.stdout and "wrong-result: out[" in done.stdout


def test_without_a_gpu_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, NO_GPU)
    assert done.returncode == 0 and "5 skipped" in done.stdout
    assert "opbench: no NVIDIA driver here; opbench doctor" in done.stdout


def test_benchmark_only_takes_them_for_benchmarks(tmp_path: Path) -> None:
    assert "2 failed, 2 passed, 1 skipped in" in run_pytest(tmp_path, STUB, "--benchmark-only").stdout


def test_the_entry_point_names_the_plugin() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {"opbench.pytest_plugin": "opbench.pytest_plugin"}
    module = importlib.import_module("opbench.pytest_plugin")
    assert module.opbench_benchmark.__doc__


@pytest.mark.parametrize("heavy", ["numpy", "matplotlib", "pandas", "cupy"])
def test_loading_the_plugin_is_light(heavy: str) -> None:
    code = f"import opbench.pytest_plugin, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
