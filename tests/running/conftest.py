"""Fixtures of the tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.running import runner
from support.builders.two_problems import SUITE, own_variant
from support.common import RELU
from support.fakes.worker import FakeWorker


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    """Three cases of each of two problems; the last of each is a variant of the test's own."""
    own_variant(tmp_path, RELU)
    path = tmp_path / "two.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """A fresh fake in place of the worker."""
    kind = type("Fresh", (FakeWorker,), {"asked": []})
    FakeWorker.asked = []
    monkeypatch.setattr(runner, "Worker", kind)
    return kind
