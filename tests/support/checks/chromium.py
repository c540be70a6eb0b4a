"""Pages as headless Chromium draws them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


QUIET = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs it")


def browser(tmp_path: Path) -> list[str]:
    """The command, with a profile of its own."""
    return [str(CHROMIUM), *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]


def opened(tmp_path: Path, address: str) -> str:
    """The page as its scripts leave it; it must log nothing."""
    command = [*browser(tmp_path), "--dump-dom", address]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in dom.stderr.splitlines() if "CONSOLE" in line]
    assert console == [], "the page logs errors, or its content policy stops something"
    return dom.stdout
