"""An installed wheel does all that a checkout does, from any folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from opbench import __version__
from opbench.kernels.folders import Catalog
from opbench.paths import shipped_folder
from opbench.results.winners import entries_of
from support.common import RELU, ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the files that git knows, so that nothing lying about can help."""
    folder = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("needs git and a clone")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes((ROOT / name).read_bytes())
    isolation = ["--no-build-isolation"] if _has_hatchling() else []
    command = [*PIP, "wheel", "--no-deps", *isolation, "--wheel-dir", str(folder), str(folder / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if (
        done.returncode != 0
        and not isolation
        and "hatchling" in done.stderr
        and "No matching distribution" in done.stderr
    ):
        pytest.skip("hatchling is not installed and cannot be fetched")
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def _has_hatchling() -> bool:
    return (
        subprocess.run([sys.executable, "-c", "import hatchling.build"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The wheel in a folder of its own; its dependencies are those of this environment."""
    target = wheel.parent / "site"
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    return target


def opbench(installed: Path, cwd: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command from another folder."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [str(installed / "bin" / "opbench"), *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_wheel_holds_everything_that_opbench_reads_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    hidden = {"__pycache__", ".ruff_cache", ".mypy_cache"}
    package = {
        str(p.relative_to(ROOT)) for p in (ROOT / "opbench").rglob("*") if p.is_file() and not hidden & set(p.parts)
    }
    assert package - names == set(), "left out of the wheel"
    for folder in ("variants", "suites"):
        files = {
            str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file() and not hidden & set(p.parts)
        }
        assert {f"opbench/shipped/{f}" for f in files} - names == set()
    for needed in (".hpp", ".cpp", ".h", "kernels.cu", "report.html.j2", "report.css", "report.js"):
        assert any(name.startswith("opbench/") and name.endswith(needed) for name in names), needed
    if (ROOT / "reports" / "h200" / "ceilings.json").exists():
        assert "opbench/shipped/reports/h200/ceilings.json" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"opbench", f"opbench-{__version__}.dist-info"}
    time_cheats = ROOT / "tests" / "cheats" / "time"
    cheats = {f"opbench/shipped/cheats/{p.relative_to(time_cheats)}" for p in time_cheats.rglob("*.[pc][yu]")}
    assert cheats and cheats - names == set(), "opbench selftest runs them"
    headers = {
        f"opbench/shipped/variants/include/opbench/{p.name}" for p in shipped_folder("variants").glob("include/*/*.cuh")
    }
    assert headers and headers - names == set(), "kernels of a user's own include them"
    ours = re.compile(r"(^|/)(test_|conftest|tests/|cheats/(?!(honest/)?\w+\.(py|cu)$))|\.pyc$")
    assert not [name for name in names if ours.search(name)]


def test_its_metadata_is_that_of_the_project(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = archive.read(name).decode()
    assert f"Version: {__version__}\n" in metadata and "License-Expression: MIT\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert (ROOT / "README.md").read_text().strip() in metadata


def test_lists_come_from_inside_the_wheel(installed: Path, tmp_path: Path) -> None:
    rows = json.loads(opbench(installed, tmp_path, "list", "variants", "--json").stdout)
    assert rows and all(Path(row["file"]).is_relative_to(installed) for row in rows)
    names = [line.split()[0] for line in opbench(installed, tmp_path, "list", "--all").stdout.splitlines()]
    assert names == sorted(p.parent.name for p in shipped_folder("variants").glob("*/operator.py"))
    suites = opbench(installed, tmp_path, "list", "suites").stdout
    assert [line.split()[0] for line in suites.splitlines()] == sorted(
        f"suites/{p.name}" for p in shipped_folder("suites").glob("*.toml")
    )


def test_checks_and_runs_from_anywhere(installed: Path, tmp_path: Path) -> None:
    check = opbench(installed, tmp_path, "check", "relu/scalar", "--random", "0", "--case", "relu/scalar[BLOCK=128]*")
    told = "relu/scalar  10 right"
    assert (check.returncode, check.stdout) in ((0, f"{told}\n"), (0, f"{told}, compiles for sm_90\n")), check.stderr
    (tmp_path / "my_kernel.cu").write_text(RELU.replace("extern", "#include <opbench/tile.cuh>\nextern"))
    run = opbench(installed, tmp_path, "run", "my_kernel.cu", "--backend", "cpu", "--out", "out")
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert "my_kernel" in page and "<style" in page
    assert opbench(installed, tmp_path, "report", "out", "--gpu", "a100").returncode == 0


def test_an_installed_wheel_ships_the_winner_that_a_checkout_ships(installed: Path, tmp_path: Path) -> None:
    peaks = {path.parent.name for path in (installed / "opbench/shipped/reports").glob("*/ceilings")}
    assert peaks == {"h100", "h200"}
    catalog = Catalog()
    problem = catalog.operator("matmul").parse("(m=4096,n=4096,k=4096)")
    assert entries_of(problem), "the winners files have it"
    done = opbench(installed, tmp_path, "ship", f"matmul{problem}", "--gpu", "h100", "--out", "own")
    assert "the fastest of the committed runs" in done.stdout + done.stderr, done.stderr
    rule = opbench(installed, tmp_path, "help", "finding", "shared-race")
    assert rule.returncode == 0 and "shared-race" in rule.stdout
