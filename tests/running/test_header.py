"""A run's file is locked, read once and refused where it does not fit, all before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench.gpu.limits.ceilings import Peaks
from opbench.results import files
from opbench.results.files import FILE, RunWriter, read_run
from opbench.running.devices import ChosenGpu
from opbench.running.header import RunFile
from opbench.running.options import RunSetup
from opbench.running.runner import run_suite
from opbench.running.suite import Suite
from opbench.timing.sampling import TimingOptions
from support.checks.errors import refuses, refuses_setting

NONE = Suite("none", "none", (), TimingOptions())


def test_the_file_is_locked_and_fits_before_ceilings_are_measured(tmp_path: Path) -> None:
    asked = []

    def ceilings(devices: Sequence[ChosenGpu]) -> list[Peaks]:
        with refuses("run-in-use", FILE):
            RunWriter(tmp_path)
        asked.append(1)
        return [Peaks()]

    run = run_suite(NONE, RunSetup("cpu", tmp_path), find_ceilings=ceilings)
    assert run == read_run(tmp_path) and run.ceilings == Peaks()
    with refuses("run-exists", FILE):
        run_suite(NONE, RunSetup("cpu", tmp_path), find_ceilings=ceilings)
    with refuses_setting("seed", 20260, 1):
        run_suite(NONE, RunSetup("cpu", tmp_path, resume=True, seed=1), find_ceilings=ceilings)
    assert asked == [1]


def test_a_run_to_be_completed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_suite(NONE, RunSetup("cpu", tmp_path))
    read, count = files.read_lines, []

    def counted(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        count.append(path)
        return read(path)

    monkeypatch.setattr(files, "read_lines", counted)
    run = run_suite(NONE, RunSetup("cpu", tmp_path, resume=True))
    assert count == [tmp_path / FILE] and run == read_run(tmp_path)


def test_what_is_refused_stays_as_it_is_and_unlocked(tmp_path: Path) -> None:
    run_suite(NONE, RunSetup("cpu", tmp_path))
    before = (tmp_path / FILE).read_bytes()
    with refuses_setting("suite", "none", "other"):
        RunFile(replace(NONE, name="other"), RunSetup("cpu", tmp_path, resume=True))
    assert (tmp_path / FILE).read_bytes() == before
    RunWriter(tmp_path).close()
