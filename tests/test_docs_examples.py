"""The examples of the documents, run as a reader would run them: in order, in a folder that has the committed runs."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checks.documents import PAGES, README, WALKED, commands, shell_lines
from support.common import ROOT
from support.prestarted import Prestarted

NEEDS_GPU = re.compile(
    r"--tune|reports/alexnet/plan|--gpus (?:all|0)|--on dask|--backend cuda|runs/|--book book|--budget"
)
OF_A_VERDICT = re.compile(r"--seed \d{10,}")
"""A command that a verdict printed with its secret seed, for a kernel that no reader has."""
NEEDS_EXTRA = {"--image digits": "sklearn"}
SHORTER = {
    "--steps 60": "--steps 2",
    "--batch 64 --steps 4": "--batch 16 --steps 2",
    "run quick": "run quick --case 'relu/*'",
    "m=4096,n=4096,k=4096": "m=256,n=256,k=256",
}
"""Parts of commands with replacements that take seconds: enough to see that the commands fit each other.

CI runs the whole quick suite (`make quick`).
"""
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


PYTHON = [(path.name, text) for path in PAGES for text in blocks(path, "python")]
UNRELATED = [page for page in PAGES if page not in WALKED]
KERNEL = next(text for text in blocks(ROOT / "README.md", "c++") if "my_relu" in text)
GUARDED = (ROOT / "examples" / "my_relu.cu").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader is: beside the committed runs, with the kernel of README's example, mended."""
    (tmp_path / "reports").mkdir()
    for model in ("h100", "h200"):
        (tmp_path / "reports" / model).symlink_to(ROOT / "reports" / model)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("my_relu.cu", "their_relu.cu", "submission.cu"):
        (tmp_path / name).write_text(GUARDED)
    return tmp_path


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(folder: Path, prestarted: Prestarted) -> Run:
    """Run a command in the reader's folder."""

    def run_words(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        if command == "opbench":
            return prestarted.run("-m", "opbench", *words, cwd=folder, env=ENVIRONMENT)
        return subprocess.run(
            [command, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
        )

    return run_words


@pytest.mark.parametrize(("document", "text"), PYTHON, ids=[f"{name}-{i}" for i, (name, _) in enumerate(PYTHON)])
def test_a_python_example_runs(folder: Path, run: Run, document: str, text: str) -> None:
    if re.search(r"^(?:import|from) (?:opbench\.)?torch", text, re.MULTILINE) and not _has("torch"):
        pytest.skip("make torch-tests installs PyTorch")
    (folder / "test_example.py").write_text(text)
    pytest_words = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "def test_" in text else []
    done = run(sys.executable, *pytest_words, "test_example.py")
    assert done.returncode == 0, f"{document}:\n{text}\n{done.stdout}{done.stderr}"
    assert done.stdout, "a newcomer sees nothing"


def test_the_first_kernel_is_found_wrong_as_printed_and_right_when_mended(folder: Path, run: Run) -> None:
    shown = next(
        text for text in blocks(ROOT / "README.md", "console") if text.startswith("$ opbench check my_relu.cu")
    )
    (folder / "my_relu.cu").write_text(KERNEL)
    first = run("opbench", "check", "my_relu.cu")
    for line in shown.splitlines()[1:]:
        words = line.strip("… ").partition(" (and ")[0]
        assert " ".join(words.split()) in " ".join(first.stdout.split()), first.stdout
    assert first.returncode == 1
    mended = KERNEL.replace("    out[i]", "    if (i < n) out[i]").replace(
        "    out[i + 1]", "    if (i + 1 < n) out[i + 1]"
    )
    assert mended == GUARDED, "examples/my_relu.cu is not README's kernel with the two guards that it tells of"
    (folder / "my_relu.cu").write_text(GUARDED)
    again = run("opbench", "check", "my_relu.cu")
    assert again.returncode == 0, again.stdout
    said, _, compiled = again.stdout.strip().partition(", ")
    assert said == "relu/my_relu  26 right" and f"`{said}`" in README and (not compiled or f"`{compiled}`" in README)


def test_the_readmes_commands_run_one_after_another(run: Run) -> None:
    ran, lines = 0, dict.fromkeys(line for page in UNRELATED for line in shell_lines(page.read_text()))
    for tool, arguments in lines:
        lacking = next((module for words, module in NEEDS_EXTRA.items() if words in arguments), None)
        if (
            tool == "make"
            or OF_A_VERDICT.search(arguments)
            or NEEDS_GPU.search(arguments)
            or (lacking and not _has(lacking))
        ):
            continue
        shorter = functools.reduce(lambda text, part: text.replace(*part), SHORTER.items(), arguments)
        done = run(tool, *shlex.split(shorter, comments=True))
        assert done.returncode == 0, f"{tool} {arguments}\n{done.stdout}{done.stderr}"
        assert done.stdout or done.stderr
        ran += 1
    assert ran >= len(lines) // 2


def _has(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def test_the_limits_that_the_page_on_the_cpu_prints_are_explains_own(run: Run) -> None:
    text = (ROOT / "docs" / "cpu.md").read_text()
    (shown,) = (block for block in blocks(ROOT / "docs" / "cpu.md", "console") if "limits of H200" in block)
    words = re.search(r"`opbench (explain 'matmul/shared_tile[^`]*)`", text)
    assert words
    done = run("opbench", *shlex.split(words[1]))
    assert shown in done.stdout, done.stdout + done.stderr


def test_the_comparison_that_a_page_prints_is_that_of_the_committed_runs(run: Run) -> None:
    (shown,) = (block for block in blocks(ROOT / "docs" / "comparing.md", "text") if block.startswith("$ "))
    ((command, pieces),) = commands(shown)
    printed = " ".join(run(*shlex.split(command)).stdout.split())
    assert pieces and [piece for piece in pieces if piece not in printed] == [], printed
