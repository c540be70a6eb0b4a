"""Fixtures that several tests share."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.common import RELU, Cli
from support.daily import VARIABLE, day_number, fix_day
from support.fakes.driver import FAKE
from support.prestarted import Prestarted, prestart
from support.tiers import long_items, read_long_tests

if TYPE_CHECKING:
    from opbench.gpu.driver import CudaBackend

pytest.register_assert_rewrite("support.checks.command_line")  # so that what it refuses is shown

# Machines are shared and noisy: a slow example is no failure.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


fix_day()  # before any other process starts
gc.disable()  # until all tests are collected: nearly nothing becomes free before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to repeat the samples of this day if a test failed."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"To repeat the samples of this day: {VARIABLE}={fix_day()}")


LONGEST = "test_the_readmes_commands_run_one_after_another"
"""Minutes, in which others run beside it if it is begun first; else one process waits for it alone at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out, and begin with the longest."""
    fixtures = [(item.nodeid, getattr(item, "fixturenames", ())) for item in items]
    for place, reason in long_items(fixtures, read_long_tests(), day_number()):
        items[place].add_marker(pytest.mark.long(reason))
    items.sort(key=lambda item: item.name != LONGEST)


def pytest_collection_finish() -> None:
    """Keep what was collected out of the garbage collections during tests, each of which would take half a second."""
    gc.freeze()
    gc.set_threshold(20_000)  # few tests leave cycles, so that a collection each 700 objects frees nearly nothing
    gc.enable()


@pytest.fixture(scope="session")
def prestarted() -> Iterator[Prestarted]:
    """Start processes of opbench without importing it anew in each."""
    with tempfile.TemporaryDirectory(prefix="opbench-tests-") as folder, prestart(Path(folder)) as process:
        yield process


@pytest.fixture
def forked_workers(prestarted: Prestarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start this process's workers as forks, unless they are confined."""
    from opbench import child_process

    monkeypatch.setattr(child_process, "subprocess", prestarted.subprocess())


@pytest.fixture
def cli(tmp_path: Path, prestarted: Prestarted) -> Cli:
    """Run the real command line in a process of its own, in an empty folder."""

    def run(*args: str | Path, cwd: Path = tmp_path, **kwargs: object) -> subprocess.CompletedProcess[str]:
        words = ["-m", "opbench", *map(str, args)]
        if kwargs.keys() <= {"env", "timeout"}:
            return prestarted.run(*words, cwd=cwd, **kwargs)  # type: ignore[arg-type]
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def relu_file(tmp_path: Path) -> Path:
    """A right kernel of a user's own, outside any variants folder."""
    path = tmp_path / "mine.cu"
    path.write_text(RELU)
    return path


@pytest.fixture
def tiny_suite(tmp_path: Path) -> Path:
    """A suite of a few cases that the CPU finishes in seconds."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        'title = "tiny"\n[[run]]\noperator = "relu"\nvariants = ["scalar", "vec4"]\ntune = { BLOCK = [128, 256] }\n'
        "problems = [{ n = 1000 }, { n = 7 }]\n"
    )
    return path


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver of support/fakes/driver.py as a library."""
    from opbench.gpu.compile import nvrtc

    headers = [option for option in nvrtc.include_options() if Path(option[2:], "cuda.h").is_file()]
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not headers or not compiler:
        pytest.skip("needs cuda.h (pip install 'opbench[nvrtc]') and a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "fake.c").write_text(FAKE)
    flags = ["-shared", "-fPIC", "-O1", "-Werror=incompatible-pointer-types"]
    command = [compiler, *flags, *headers, "fake.c", "-o", "fake.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "fake.so"


@pytest.fixture
def backend(fake_driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A backend on a fresh copy of the fake, as a kernel that dies breaks it for good; all share one cache."""
    from opbench.gpu.driver import CudaBackend, device
    from opbench.gpu.driver.driver import Driver

    copy = shutil.copy(fake_driver, tmp_path / "libfake.so")
    monkeypatch.setenv("OPBENCH_CACHE", str(fake_driver.parent))
    monkeypatch.setattr(device, "why_missing", lambda: None)
    monkeypatch.setattr(device, "Driver", lambda: Driver(str(copy)))
    return CudaBackend()
