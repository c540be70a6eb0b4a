"""Command lines of opbench for processes that a test starts itself, and what a refusal looks like."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def command(*args: str | Path) -> list[str]:
    """A command line for Popen."""
    return [sys.executable, "-m", "opbench", *map(str, args)]


def own_folder(folder: Path, **kernels: str) -> Path:
    """A user's folder laid out as variants/, with variants of relu."""
    (folder / "relu").mkdir(parents=True)
    for name, source in kernels.items():
        (folder / "relu" / f"{name}.cu").write_text(source)
    return folder


def refused(done: subprocess.CompletedProcess[str], code: int, *text: str) -> None:
    """An error is one message of ours on stderr, and no traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("opbench: ")
    for word in text:
        assert word in message


def heed_interrupts() -> None:
    """Where the tests run in a shell's background, they and what they start would ignore interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
