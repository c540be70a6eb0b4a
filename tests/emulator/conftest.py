"""Fixtures of the tests of both backends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench.emulator import CpuBackend
from opbench.paths import cache_folder
from support.builders.on_cpu import Bench, Tracer


@pytest.fixture(scope="session")
def cache() -> Path:
    """Return the folder of modules that all tests and all their processes share."""
    return cache_folder("cpu")


@pytest.fixture
def bench(tmp_path: Path, cache: Path) -> Bench:
    return Bench(tmp_path, CpuBackend(cache, workers=2))


@pytest.fixture
def compiler() -> str:
    """The usual one; a file of tests may ask for others by a fixture of this name."""
    return ""


@pytest.fixture
def tracer(tmp_path: Path, cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> Tracer:
    """Traces with that compiler."""
    if compiler:
        monkeypatch.setenv("OPBENCH_CXX", compiler)
    return Tracer(tmp_path, CpuBackend(cache))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)
