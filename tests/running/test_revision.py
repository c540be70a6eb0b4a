"""The commit in a run's header: of the folder opbench was called in, and never in the way of a run."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from opbench.results.header import Revision
from opbench.running import revision as module
from opbench.running.revision import revision


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_and_changes_of_tracked_files(tmp_path: Path) -> None:
    below = tmp_path / "mine"
    below.mkdir()
    git(tmp_path, "init", "-q")
    assert revision(tmp_path) is None, "there is no commit yet"
    (below / "relu.cu").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "results.jsonl").write_text("untracked")
    assert revision(below) == Revision(commit, False)
    (below / "relu.cu").write_text("two!")
    assert revision(below) == Revision(commit, True)


def test_no_repository_and_no_git_are_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision(tmp_path) is None
    assert revision(tmp_path / "gone") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision() is None


def test_a_git_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "git"
    slow.write_text('#!/bin/sh\n[ "$3" = rev-parse ] && echo 1a2b3c4 && exit\nexec /bin/sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "GIT_LIMIT_S", 0.2)
    began = time.monotonic()
    assert revision() == Revision("1a2b3c4")
    assert time.monotonic() - began < 30
