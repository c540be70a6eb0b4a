"""The doctor: looks at everything, breaks at nothing, and says what mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from opbench import doctor, paths
from opbench.doctor import Requirement
from opbench.insight.nsight import tools


def _rows(*backends: doctor.State) -> list[Requirement]:
    names = ("backend cuda", "backend cpu")
    return [Requirement("disk", "ok", ""), *(Requirement(n, s, "") for n, s in zip(names, backends, strict=True))]


@pytest.fixture(scope="module")
def rows() -> list[Requirement]:
    """What the doctor says of this machine."""
    return doctor.diagnose()


def test_every_probe_answers_here(rows: list[Requirement]) -> None:
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert {"Python", "GPU", "NVRTC", "host compiler", "Nsight Compute", "hardware counters", "backend cpu"} <= set(
        names
    )
    assert all(row.seen and row.state in ("ok", "missing", "warning") for row in rows)
    assert all(row.remedy for row in rows if row.state == "missing")
    assert not any("could not be checked" in row.seen for row in rows)


def test_the_report_prints_and_is_json(rows: list[Requirement]) -> None:
    out = io.StringIO()
    doctor.print_report(
        [*rows, Requirement("odd", "missing", "[bold]not markup[/]", "pip install 'opbench[cuda13]'")],
        Console(file=out),
    )
    assert "[bold]not markup[/]" in out.getvalue() and "opbench[cuda13]" in out.getvalue()
    assert json.loads(json.dumps(doctor.to_json(rows)))[0]["name"] == rows[0].name


@pytest.mark.parametrize(
    ("cuda", "cpu", "code"), [("ok", "ok", 0), ("ok", "missing", 0), ("missing", "ok", 0), ("missing", "missing", 3)]
)
def test_one_working_backend_is_enough(cuda: doctor.State, cpu: doctor.State, code: int) -> None:
    assert doctor.exit_code(_rows(cuda, cpu)) == code


def test_a_probe_that_breaks_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> Requirement:
        raise OSError("libcuda.so.1: invalid ELF header")

    monkeypatch.setattr(doctor, "_gpu", explode)
    gpu = next(row for row in doctor.diagnose() if row.name == "GPU")
    assert gpu.state == "warning" and "invalid ELF header" in gpu.seen


def test_a_bare_machine_gets_a_remedy_for_each_lack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.ctypes, "CDLL", no_library)
    monkeypatch.setattr(tools, "locate", lambda tool: None)
    found = {name: probe() for name, probe in (
        ("GPU", doctor._gpu), ("CuPy", doctor._cupy), ("NVML", doctor._nvml), ("packages", doctor._packages),
        ("host compiler", doctor._compiler), ("Nsight Compute", lambda: doctor._profiler("ncu")),
    )}  # fmt: skip
    assert all(row.state == "missing" and row.remedy for row in found.values())
    assert "--backend cpu" in found["GPU"].remedy
    assert f"{sys.executable} -m {paths.pip_install('compiler')}" in found["host compiler"].remedy
    assert "'numpy>=" in found["packages"].remedy


@pytest.mark.parametrize(("version", "state"), [("9.4.0", "missing"), ("12.2.0", "ok")])
def test_an_old_compiler_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, state: doctor.State
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho {version}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler) if name == "g++" else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    row = doctor._compiler()
    assert row.state == state and version in row.seen


def test_a_profilers_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "ncu"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA (R) Nsight Compute Command Line Profiler'\necho 'Version 2025.3.1.0 (build 1)'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(tools, "locate", lambda name: str(tool))
    assert doctor._profiler("ncu").seen == f"2025.3.1.0 at {tool}"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert doctor._profiler("ncu").state == "warning"


@pytest.mark.parametrize(("allowed", "state"), [(True, "ok"), (False, "missing"), (None, "warning")])
def test_counter_permission(monkeypatch: pytest.MonkeyPatch, allowed: bool | None, state: doctor.State) -> None:
    monkeypatch.setattr(tools, "counter_permission", lambda: tools.Permission(allowed, "seen"))
    row = doctor._counters()
    assert row.state == state and ("sudo -E" in row.remedy) == (allowed is False)


def test_little_space_and_a_cache_that_will_not_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5e8}))
    assert doctor._disk().state == "warning" and "500 MB" in doctor._disk().seen
    monkeypatch.delenv("OPBENCH_CACHE", raising=False)
    monkeypatch.setattr(paths, "cache_folder", lambda name: tmp_path)
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path.parent))
    (tmp_path / "module").write_bytes(bytes(2000))
    row = doctor._cache()
    assert row.state == "warning" and "2.00 kB" in row.seen and "OPBENCH_CACHE" in row.remedy
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path))
    assert doctor._cache().state == "ok"


def test_a_cache_from_which_another_process_removes_files_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build folder disappears while its files are looked at."""
    (tmp_path / "module").write_bytes(bytes(2000))
    (tmp_path / "link").symlink_to(tmp_path / "module")
    (tmp_path / ".build").mkdir()
    for name in "abc":
        (tmp_path / ".build" / name).touch()
    genuine = Path.stat

    def look(path: Path, **options: bool) -> os.stat_result:
        status = genuine(path, **options)
        if path.parent.name == ".build":
            shutil.rmtree(path.parent)
        return status

    monkeypatch.setattr(Path, "stat", look)
    monkeypatch.setattr(paths, "cache_folder", lambda name: tmp_path)
    assert "2.00 kB" in doctor._cache().seen


def test_an_attached_profiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    row = doctor._profiler_attached()
    assert row.state == "warning" and "NSYS_PROFILING_SESSION_ID" in row.seen


def test_the_list_of_packages_is_the_projects_own() -> None:
    """Read from the metadata or pyproject.toml: no second list to keep in step."""
    names = {requirement.split(">")[0] for requirement in doctor._requirements()}
    assert {"numpy", "click", "rich", "nvtx"} <= names and "cupy-cuda13x" not in names


def test_no_line_is_folded_as_remedies_are_pasted(rows: list[Requirement]) -> None:
    out = io.StringIO()
    remedy = "pip install " + " ".join(f"package-{i}" for i in range(40))
    doctor.print_report([*rows, Requirement("odd", "missing", "seen", remedy)], Console(file=out, width=80))
    assert f"→ {remedy}\n" in out.getvalue()
    assert len(out.getvalue().splitlines()) == len(rows) + 2 + sum(bool(row.remedy) for row in rows) + sum(
        row.remedy.count("\n") + row.seen.count("\n") for row in rows
    )


def test_a_terminal_shows_what_was_seen_in_its_width(rows: list[Requirement]) -> None:
    out = io.StringIO()
    seen = " ".join(f"package-{i}" for i in range(40))
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    doctor.print_report([*rows, Requirement("odd", "ok", seen)], console)
    lines = [line for line in out.getvalue().splitlines() if "→" not in line]
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)
    assert " ".join(out.getvalue().split()).endswith(seen), "every word is there"


def test_a_checkout_installs_extras_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No index need have opbench; a wheel came from one."""
    monkeypatch.setattr(paths, "checkout", lambda: tmp_path)
    assert paths.pip_install("cuda13") == f"pip install -e '{tmp_path}[cuda13]'"
    monkeypatch.chdir(tmp_path)
    assert paths.pip_install("cuda13") == "pip install -e '.[cuda13]'"
    monkeypatch.setattr(paths, "checkout", lambda: None)
    assert paths.pip_install("cuda13") == "pip install 'opbench[cuda13]'"
