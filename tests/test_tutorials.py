"""Pages that are walked from top to bottom: files written, edits made, commands run, and what they print compared.

A block with a title is a file (`c++ title="my.cu"`), or an edit of one (`diff title="my.cu"`); a `console` block holds
commands and what they print, where `…` stands for what is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.checks.documents import WALKED, commands
from support.common import ROOT
from support.prestarted import Prestarted

BLOCK = re.compile(r'^```([\w+]+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
SHELL = re.compile(r"[|&;<>$`\n]")
"""Signs that a command needs a shell, as it does more than list words."""
EXAMPLES = ROOT / "examples"


def edited(text: str, diff: str) -> str:
    """The text with the hunks of a diff applied; a hunk ends at a line of `…`."""
    for hunk in re.split(r"^ *…\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        assert text.count(old) == 1, f"this edit fits {text.count(old)} places:\n{hunk}\nof\n{text}"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, prestarted: Prestarted) -> None:
    blocks = BLOCK.findall(page.read_text())
    if any("import torch" in block for _, title, block in blocks if title):
        pytest.importorskip("torch", reason="make torch-tests installs it")
    ran = 0
    for language, title, block in blocks:
        if title:
            file = tmp_path / title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(edited(file.read_text(), block) if language == "diff" else block)
        elif language == "console":
            for command, pieces in commands(block):
                words = shlex.split(command, comments=True)
                if words[0] == "opbench" and not SHELL.search(command):
                    done = prestarted.run("-m", *words, cwd=tmp_path, env=ENVIRONMENT)
                else:
                    done = subprocess.run(
                        command, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
                        check=False,
                    )  # fmt: skip
                printed, at = " ".join(done.stdout.split()), 0
                for piece in pieces:
                    assert piece in printed[at:], f"$ {command}\n{piece}\nis not what is printed next:\n{done.stdout}"
                    at = printed.index(piece, at) + len(piece)
                assert (done.returncode == 0) == (not re.search(r"\b\d+ (?:wrong|failed)", printed)), (
                    f"{command}\n{done.stdout}{done.stderr}"
                )
                ran += 1
    assert ran
    for file in (EXAMPLES / page.stem).rglob("*.*"):
        assert file.read_text() == (tmp_path / file.relative_to(EXAMPLES / page.stem)).read_text(), f"{page} and {file}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("tutorial-*.md")), ids=lambda page: page.stem)
def test_measured_rows_of_a_tutorial_are_those_of_the_ladder(page: Path) -> None:
    """A row that names a variant and a time is one that `opbench ladder` wrote, which `ladder --check` reads again."""
    ladder = (ROOT / "variants" / "matmul" / "README.md").read_text()
    rows = re.findall(r"^(\| \[`\w+`\].* [mµ]s \|.*)$", page.read_text(), re.MULTILINE)
    assert rows and [row for row in rows if row.replace("../variants/matmul/", "") not in ladder] == []
