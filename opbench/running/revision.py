"""The git commit of the user's project at the time of a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from opbench.results.header import Revision

GIT_LIMIT_S = 0.5
"""Time limit of each of two git commands: a slow disk or a huge tree must not delay a run."""


def revision(folder: Path | None = None) -> Revision | None:
    """Return the commit that is checked out in a folder (default: here), and whether tracked files have changes.

    Returns None without git, outside a repository, before its first commit, and if git does not answer in time.
    `changed` is None if only that answer takes too long. Untracked files are ignored, because results in the
    project are untracked.
    """
    project = folder or Path()
    commit = _ask(project, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return None
    changes = _ask(project, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return Revision(commit, None if changes is None else bool(changes))


def _ask(folder: Path, *question: str) -> str | None:
    """Run a git command that takes no lock; return its output, or None if it fails or takes too long."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *question],
            capture_output=True,
            timeout=GIT_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace").strip() if answer.returncode == 0 else None
