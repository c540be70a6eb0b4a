"""What only `make test-all` runs is listed with its reason, and every room and variant has its tests in `make test`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from opbench.kernels.folders import Catalog
from support.common import ROOT
from support.tiers import LongTest, long_items, read_long_tests

TESTS = ROOT / "tests"
LONG = read_long_tests()


def functions(path: Path) -> set[str]:
    """Return the names of a file's test functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_long_test_is_there_once_and_has_a_reason() -> None:
    missing = []
    for test in LONG:
        file, _, name = test.name.partition("::")
        if not (TESTS / file).is_file() or name not in functions(TESTS / file):
            missing.append(test.name)
    assert missing == []
    assert [name for name, times in Counter(test.name for test in LONG).items() if times > 1] == []
    assert [test.name for test in LONG if len(test.reason.split()) < 3] == []


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_make_test_runs_some_test_of_every_file(path: Path) -> None:
    """So that each room, which has a folder of tests, is tested by both commands."""
    left_out = {test.name for test in LONG if not test.sample}
    file = path.relative_to(TESTS).as_posix()
    assert [name for name in functions(path) if f"{file}::{name}" not in left_out]


def test_make_test_checks_and_compiles_every_variant() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "not long", TESTS / "test_variants.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    collected = set(done.stdout.splitlines())
    catalog = Catalog()
    for operator in catalog.operator_names():
        for variant in (v for v in catalog.variants(operator) if not v.is_library):
            for name in ("test_right_on_its_two_most_telling_examples", "test_its_first_config_compiles_for_hopper"):
                assert f"tests/test_variants.py::{name}[{variant.id}]" in collected, done.stdout + done.stderr


def test_a_sample_is_spread_over_the_parameter_sets() -> None:
    ids = ["tests/a.py::test_one", *(f"tests/a.py::test_many[{n}]" for n in range(5)), "tests/a.py::test_two"]
    long_tests = [LongTest("a.py::test_one", "takes a minute"), LongTest("a.py::test_many", "many of a kind", sample=2)]
    assert list(long_items(ids, long_tests)) == [
        (0, "takes a minute"),
        *((place, "many of a kind") for place in (2, 3, 5)),
    ]
