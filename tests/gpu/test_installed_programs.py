"""Where NVIDIA's programs are looked for, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import doctor, paths
from opbench.gpu.compile import installed
from opbench.gpu.compile.installed import compute_sanitizer


def _program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho 'NVIDIA (R) Compute Sanitizer'\necho 'Version 2026.4.0.0 (build 1)'\n")
    path.chmod(mode)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with empty folders for PATH, for wheels and for a toolkit."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(installed, "wheel_roots", lambda: [tmp_path / "nvidia"])
    monkeypatch.setattr(installed, "toolkits", lambda: [tmp_path / "toolkit"])
    return tmp_path


def test_wheels_come_before_path_before_toolkits(machine: Path) -> None:
    assert compute_sanitizer() is None
    toolkit = _program(machine / "toolkit" / "bin" / "compute-sanitizer")
    assert compute_sanitizer() == toolkit
    on_path = _program(machine / "path" / "compute-sanitizer")
    assert compute_sanitizer() == on_path
    wheel = _program(machine / "nvidia" / "cu13" / "compute-sanitizer" / "compute-sanitizer")
    assert compute_sanitizer() == wheel


def test_a_wheel_without_the_launcher_is_not_taken(machine: Path) -> None:
    _program(machine / "nvidia" / "cu13" / "bin" / "compute-sanitizer")
    assert compute_sanitizer() is None


def test_a_file_that_cannot_run_is_not_taken(machine: Path) -> None:
    _program(machine / "toolkit" / "bin" / "compute-sanitizer", 0o644)
    assert compute_sanitizer() is None


def test_doctor_shows_the_program_or_the_extra_that_installs_it(machine: Path) -> None:
    row = doctor._sanitizer()
    assert row.state == "missing" and row.remedy.endswith(paths.pip_install("sanitizer"))
    path = _program(machine / "nvidia" / "cu13" / "compute-sanitizer" / "compute-sanitizer")
    row = doctor._sanitizer()
    assert (row.state, row.seen) == ("ok", f"2026.4.0.0 at {path}")
    path.write_text("#!/bin/sh\nexit 1\n")
    assert doctor._sanitizer().state == "warning"
