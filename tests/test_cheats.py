"""Kernels that are wrong, hang, crash or lie: each must be caught, and cost only its own cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from common import CHEATS

from opbench import api

FILES = sorted(CHEATS.glob("*.cu"))


def expected(path: Path) -> list[str]:
    """What the file itself says must be reported: "status: words" or alternatives."""
    line = re.search(r"^// expect: (.*)$", path.read_text(), re.MULTILINE)
    assert line, f"{path.name} says not what to expect"
    return line[1].split("|")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_cheat_is_caught(path: Path) -> None:
    results = api.check([path], backend="cpu", random_shapes=1, time_limit_s=5.0)
    reports = [f"{r.status}: {r.reason}" for r in results]
    caught = [r for r in reports if not r.startswith("right")]
    assert caught, reports
    assert any(words in r for r in caught for words in expected(path)), caught[0]


def test_a_crash_costs_only_its_own_cases(relu_file: Path) -> None:
    cheats = [
        CHEATS / f"{name}.cu" for name in ("loops_forever", "writes_far_away", "does_not_compile", "block_too_large")
    ]
    results = api.check([*cheats, relu_file], backend="cpu", random_shapes=0, time_limit_s=3.0)
    assert {r.status for r in results if r.variant == "mine"} == {"right"}
    assert {r.variant for r in results if r.status == "failed"} >= {
        "loops_forever",
        "does_not_compile",
        "block_too_large",
    }


def test_a_compiler_error_shows_file_and_line() -> None:
    result = api.check([CHEATS / "does_not_compile.cu"], backend="cpu", random_shapes=0)[0]
    line = next(
        i
        for i, text in enumerate((CHEATS / "does_not_compile.cu").read_text().splitlines(), 1)
        if "undeclared_name" in text
    )
    assert f"does_not_compile.cu:{line}" in result.reason and "undeclared_name" in result.reason
