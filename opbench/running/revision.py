"""Which commit of the user's own project a run measured."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from opbench.results.header import Revision

PATIENCE_S = 0.5
"""For each of two questions to git: a slow disk or a huge tree must not hold a run up."""


def revision(folder: Path | None = None) -> Revision | None:
    """The commit checked out in a folder (default: here) and whether tracked files differ from it, for a run's header.

    None without git, outside a repository, before its first commit, and where git does not answer; `changed` alone is
    None where only that takes too long. Untracked files do not count: results that lie in the project are such.
    """
    place = folder or Path()
    commit = _ask(place, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return None
    changes = _ask(place, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return Revision(commit, None if changes is None else bool(changes))


def _ask(folder: Path, *question: str) -> str | None:
    """git's answer; None without one in time. It takes no lock that another git would wait for."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *question],
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace").strip() if answer.returncode == 0 else None
