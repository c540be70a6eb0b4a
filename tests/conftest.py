"""Fixtures that several tests share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from common import RELU, Cli

pytest.register_assert_rewrite("command_line")  # so that what it refuses is shown

# Machines are shared and noisy: a slow example is no failure.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Run the real command line in a process of its own, in an empty folder."""

    def run(*args: str | Path, cwd: Path = tmp_path, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "opbench", *map(str, args)]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]

    yield run


@pytest.fixture
def relu_file(tmp_path: Path) -> Path:
    """A right kernel of a user's own, outside any variants folder."""
    path = tmp_path / "mine.cu"
    path.write_text(RELU)
    return path


@pytest.fixture
def tiny_suite(tmp_path: Path) -> Path:
    """A suite of a few cases that the CPU finishes in seconds."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        'title = "tiny"\n[[run]]\noperator = "relu"\nvariants = ["scalar", "vec4"]\ntune = { BLOCK = [128, 256] }\n'
        "problems = [{ n = 1000 }, { n = 7 }]\n"
    )
    return path
