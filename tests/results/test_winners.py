"""The committed winners files: in step with the committed runs, and found by the names of a GPU model."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from opbench.networks.records.network_run import read_case_run
from opbench.records import plain_name
from opbench.results.book import make_book, read_book
from opbench.results.winners import FILE, entries_of, run_of, same_model, shipped_winners
from support.common import CATALOG, ROOT

FILES = sorted((ROOT / "reports").glob(f"*/{FILE}*"))


def sources() -> dict[str, list[Path]]:
    """Return what `make winners` reads, by the file that it writes."""
    done = subprocess.run(["make", "-n", "winners"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines() if " book " in line]
    return {command[-1]: [Path(name) for name in command[command.index("book") + 1 : -2]] for command in commands}


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_a_winners_file_is_what_its_runs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the other files were replaced by those of another GPU and are only in the history."""
    monkeypatch.chdir(ROOT)
    books = {path.with_name(plain_name(path)).relative_to(ROOT).as_posix(): read_book(path) for path in FILES}
    assert "reports/h200/winners.json" in sources()
    for name, runs in sources().items():
        assert make_book(runs, CATALOG, read_case_run) == books[name], "make winners"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_winner_can_be_chosen(path: Path) -> None:
    for entry in read_book(path).entries:
        case = CATALOG.case(entry.winner.case)
        assert case.unmet_requirement() is None and case.variant.reproducible and not case.variant.is_library


def test_a_gpu_with_winners_has_committed_peaks() -> None:
    peaks = {p.parent.parent.name for p in (ROOT / "reports").glob("*/ceilings/ceilings.json")}
    assert {"h100", "h200"} <= {path.parent.name for path in FILES} <= peaks
    assert len(shipped_winners().entries) == sum(len(read_book(path).entries) for path in FILES)


def test_the_entries_of_a_problem_are_of_every_precision() -> None:
    kinds = {
        p: {(e.operator, e.problem) for e in shipped_winners().entries if e.precision == p} for p in ("f32", "tf32")
    }
    operator, name = min(kinds["f32"] & kinds["tf32"])
    found = entries_of(CATALOG.operator(operator).parse(name))
    assert {entry.precision for entry in found} >= {"f32", "tf32"}
    assert {(entry.operator, entry.problem) for entry in found} == {(operator, name)}
    runs = [run_of(entry.winner) for entry in found if same_model(entry.gpu, "h200")]
    assert len(runs) >= 2 and all((ROOT / run).is_dir() for run in runs)


@pytest.mark.parametrize(
    ("gpu", "other", "same"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100 SXM", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", False),
        ("NVIDIA H200", "NVIDIA H100 80GB HBM3", False),
        ("NVIDIA Someday", "NVIDIA Someday", True),
        ("", "NVIDIA H200", False),
    ],
)
def test_two_names_of_one_model(gpu: str, other: str, same: bool) -> None:
    assert same_model(gpu, other) == same
