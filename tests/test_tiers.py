"""Only `make test-all` runs some tests, each with a reason; `make test` tests every package and some kernel files."""

from __future__ import annotations

import ast
import functools
import os
from collections import Counter
from pathlib import Path

import pytest

from support.common import ROOT, kernel_variants
from support.daily import VARIABLE, daily_sample, fix_day
from support.tiers import LongTests, long_items, read_long_tests

TESTS = ROOT / "tests"
LONG = read_long_tests()


@functools.cache
def functions(path: Path) -> set[str]:
    """Return the names of a file's test functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_long_test_is_there_once_and_has_a_reason() -> None:
    named = [name for group in LONG for name in group.tests]
    missing = []
    for name in named:
        file, _, function = name.partition("::")
        if not (TESTS / file).is_file() or function not in functions(TESTS / file):
            missing.append(name)
    assert missing == [], "tests/long_tests.toml names tests that are not there: rename or remove them in it, too"
    assert [name for name, times in Counter(named).items() if times > 1] == []
    assert [group for group in LONG if len(group.reason.split()) < 3 or bool(group.tests) == bool(group.fixture)] == []


def test_make_test_runs_some_test_of_every_file() -> None:
    """So that each package, which has a folder of tests, is tested by both commands.

    Examples with PyTorch are left to `make torch-tests`.
    """
    left_out = {name for group in LONG for name in group.tests if not group.sample}
    tests = {
        path.relative_to(TESTS).as_posix(): {
            f"{path.relative_to(TESTS).as_posix()}::{name}" for name in functions(path)
        }
        for path in TESTS.rglob("test_*.py")
        if path.name != "test_torch_examples.py"
    }
    assert tests and [file for file, names in tests.items() if names <= left_out] == []


@pytest.mark.parametrize(
    ("test", "days"),
    [
        ("test_right_on_its_most_telling_example", 1),
        ("test_the_last_variant_of_a_file_compiles_for_hopper", 2),
    ],
)
def test_make_test_reaches_every_file_of_kernels(test: str, days: int) -> None:
    last = {variant.path: variant.id for variant in kernel_variants()}
    items = [(f"tests/test_variants.py::{test}[{name}]", ()) for name in last.values()]
    samples = [{*range(len(items))} - {place for place, _ in long_items(items, LONG, day)} for day in range(days)]
    assert set().union(*samples) == {*range(len(items))}


def test_of_a_fixture_each_room_has_its_sample() -> None:
    assert all(group.sample for group in LONG if group.fixture)


def test_a_sample_is_spread_over_the_parameter_sets() -> None:
    ids = ["tests/a.py::test_one", *(f"tests/a.py::test_many[{n}]" for n in range(5)), "tests/a.py::test_two"]
    groups = [
        LongTests("takes a minute", ("a.py::test_one",)),
        LongTests("many of a kind", ("a.py::test_many",), sample=2),
    ]
    assert list(long_items([(name, ()) for name in ids], groups, 7)) == [
        (0, "takes a minute"),
        *((place, "many of a kind") for place in (2, 3, 5)),
    ]


def test_a_daily_sample_takes_other_parameter_sets_the_next_day() -> None:
    items = [(f"tests/a.py::test_many[{n}]", ()) for n in range(6)]
    groups = [LongTests("many of a kind", ("a.py::test_many",), sample=2, daily=True)]
    run = [{*range(6)} - {place for place, _ in long_items(items, groups, day)} for day in (6, 7, 8, 9)]
    assert run == [{0, 3}, {2, 5}, {1, 4}, {0, 3}]


def test_tests_of_a_fixture_are_sampled_by_room_unless_they_are_named() -> None:
    items = [(f"tests/{file}.py::test_{n}", ("cli",) if n else ()) for file in ("a/c", "a/d", "b/e") for n in (0, 1, 2)]
    groups = [LongTests("starts a process", fixture="cli", sample=1), LongTests("takes a minute", ("a/c.py::test_1",))]
    left_out = {items[place][0]: reason for place, reason in long_items(items, groups, 0)}
    assert left_out == {
        "tests/a/c.py::test_1": "takes a minute",
        "tests/a/d.py::test_1": "starts a process",
        "tests/a/d.py::test_2": "starts a process",
        "tests/b/e.py::test_2": "starts a process",
    }


def test_a_sample_of_the_day_lasts_a_session_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ[VARIABLE] == fix_day(), "processes that a session starts inherit its day"
    samples = []
    for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
        monkeypatch.setenv(VARIABLE, day)
        samples.append(daily_sample(range(1000), 5))
    assert samples[0] == samples[2] != samples[1] and len({*samples[0]}) == 5
    assert daily_sample(range(1000), 5, "sm_80") != samples[2]
