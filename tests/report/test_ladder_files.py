"""`opbench ladder`: writes only when asked, only in a checkout, only what was measured, and loses no row."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbench import paths
from opbench.cli import cli
from opbench.report.ladder_files import measured_cells
from support.builders.runs import cpu_run, result, run, written
from support.checks.errors import refuses
from support.common import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")
BIG = "(n=67108864)"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's documents, to be changed."""
    root = tmp_path / "tree"
    for path in documents(ROOT):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (root / "reports").symlink_to(ROOT / "reports")
    monkeypatch.setattr(paths, "checkout", lambda: root)
    return root


def documents(root: Path) -> list[Path]:
    """All that the command may write."""
    return [root / "README.md", root / "docs" / "networks.md", *root.glob("variants/**/README.md")]


def texts(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in documents(root)}


def ladder(*words: str | Path) -> str:
    done = CliRunner().invoke(cli, ["ladder", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def of_relu(folder: Path, *variants: str) -> Path:
    """A run that measured some variants at the problem that relu's README shows."""
    return written(folder, run([result(variant, 1e-4 + i * 1e-5, problem=BIG) for i, variant in enumerate(variants)]))


ALL_VARIANTS = ("scalar", "grid_stride", "vec4", "vec4_unrolled", "torch")


def changed(root: Path, before: dict[str, str]) -> set[str]:
    after = texts(root)
    return {name for name in after if after[name] != before[name]}


def test_it_writes_only_with_write(tree: Path, tmp_path: Path) -> None:
    before, folder = texts(tree), of_relu(tmp_path / "run", *ALL_VARIANTS)
    (tree / "variants" / "relu" / "README.md").write_text("# relu\n")
    printed = ladder(folder)
    assert changed(tree, before) == {"variants/relu/README.md"} and "+| [`vec4`](vec4.cu) | 120 µs" in printed
    assert f"write them with: opbench ladder --write {folder}" in printed
    done = CliRunner().invoke(cli, ["ladder", str(folder), "--json"])
    assert json.loads(done.stdout) == {
        "stale": ["variants/relu/README.md", "variants/README.md"],
        "written": False,
        "left": {},
    }
    assert "wrote variants/relu/README.md" in ladder("--write", folder)
    assert "| [`vec4`](vec4.cu) | 120 µs" in (tree / "variants" / "relu" / "README.md").read_text()


def test_only_what_was_measured_changes_and_other_rows_stay(tree: Path, tmp_path: Path) -> None:
    before = texts(tree)
    (tree / "variants" / "relu" / "README.md").write_text("# relu\n")
    ladder("--write", of_relu(tmp_path / "run", *ALL_VARIANTS))
    assert changed(tree, before) == {"variants/relu/README.md", "variants/README.md"}
    old, new = before["variants/README.md"].splitlines(), (tree / "variants" / "README.md").read_text().splitlines()
    differ = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert [line.startswith("| [relu]") for pair in differ for line in pair] == [True, True]


@pytest.mark.parametrize("variants", [("scalar",), ALL_VARIANTS])
def test_a_file_that_would_lose_rows_is_left_with_the_runs_to_name(
    tree: Path, tmp_path: Path, variants: tuple[str, ...]
) -> None:
    """All variants of one problem are there, but not those of the other problems."""
    before = texts(tree)
    printed = ladder("--write", of_relu(tmp_path / "run", *variants))
    assert changed(tree, before) == set() and len(measured_cells(before["variants/relu/README.md"])) > len(ALL_VARIANTS)
    assert re.search(
        r"left variants/relu/README.md: it shows `\w+` at `\(n=\d+(,dtype=bf16)?\)` and \d+ more rows", printed
    )
    assert "name the runs that have them first (reports/h200/full" in printed
    # Named first, they keep their rows.
    ladder("--write", ROOT / "reports" / "h200" / "full", tmp_path / "run")
    assert measured_cells(texts(tree)["variants/relu/README.md"]) >= measured_cells(before["variants/relu/README.md"])


def test_a_run_without_times_changes_nothing_and_says_why(tree: Path, tmp_path: Path) -> None:
    before, folder = texts(tree), written(tmp_path / "cpu", cpu_run())
    with refuses("no-times", "cpu"):
        ladder("--write", folder)
    assert changed(tree, before) == set()


def test_an_installed_opbench_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "site-packages" / "opbench")
    (tmp_path / "site-packages" / "opbench").mkdir(parents=True)
    assert paths.checkout() is None
    for words in ([], ["--write"]):
        with refuses("not-a-checkout"):
            ladder(*words, of_relu(tmp_path / "run", "scalar"))


def test_networks_outside_the_checkout_are_refused(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "reports" / "h200" / "networks" / "lenet-1-f32", tmp_path / "nets" / "lenet")
    with refuses("outside", "lenet"):
        ladder(tmp_path / "nets")
