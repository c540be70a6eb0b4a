"""The hook of .pre-commit-hooks.yaml as pre-commit runs it: its entry, its args, then the names of changed files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from support.common import RELU, WRONG, Cli

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


def test_the_hook_takes_changed_kernels_and_ends_a_commit_with_a_wrong_one(cli: Cli, tmp_path: Path) -> None:
    (hook,) = yaml.safe_load(HOOKS.read_text())
    assert hook["id"] == "opbench-check"
    assert hook["require_serial"] is True  # else pre-commit splits the files over processes
    program, *arguments = shlex.split(hook["entry"])
    assert program == "opbench"

    right, wrong = tmp_path / "two words.cu", tmp_path / "wrong.cu"
    right.write_text(RELU)
    wrong.write_text(WRONG)
    changed = [path.name for path in (right, wrong, HOOKS) if re.search(hook["files"], path.name)]
    assert changed == [right.name, wrong.name]

    done = cli(*arguments, right.name)
    assert done.returncode == 0, done.stderr
    done = cli(*arguments, *changed)
    assert done.returncode == 1
    assert "wrong" in done.stdout
