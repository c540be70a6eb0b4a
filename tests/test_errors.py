"""The words of errors that every package raises; other tests assert their fields."""

from __future__ import annotations

import pickle

import pytest

from opbench.errors import (
    EXIT_ENVIRONMENT,
    LaunchError,
    Location,
    NotAllowed,
    OtherVersion,
    Reason,
    SettingDiffers,
    UsageError,
    unknown_name,
)
from opbench.paths import MissingExtra, pip_install
from opbench.results.comparison import NotComparable
from opbench.results.environments import Difference
from support.checks.errors import MESSAGES
from support.common import ROOT

NAMES = ("relu", "matmul")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UsageError(unknown_name("operator", "rellu", NAMES)), "unknown operator 'rellu'; did you mean 'relu'?"),
        (UsageError(unknown_name("operator", "x", NAMES)), "unknown operator 'x'; known: matmul, relu"),
        (
            LaunchError(unknown_name("buffer", "matmull", iter(NAMES), "opbench list operators", place="k")),
            "k: unknown buffer 'matmull'; did you mean 'matmul'? (list all: opbench list operators)",
        ),
    ],
)
def test_a_name_that_is_not_known_comes_with_the_nearest_or_with_all(error: UsageError, words: str) -> None:
    assert str(error) == error.message == words
    assert error.unknown is not None and error.unknown.known_names == ("matmul", "relu")


def test_a_location_stands_first_and_other_errors_have_no_name() -> None:
    error = UsageError("x is not allowed", Location(ROOT / "a.cu", 3))
    assert str(error) == f"{ROOT / 'a.cu'}:3: x is not allowed"
    assert error.reason == Reason("x is not allowed", Location(ROOT / "a.cu", 3)) and error.unknown is None


def test_a_setting_that_differs_comes_with_both_values_and_the_way_out() -> None:
    error = SettingDiffers(ROOT / "results.jsonl", "seed", 1, None)
    assert str(error) == (
        f"{ROOT / 'results.jsonl'}: has results made with seed = 1, and this command has seed = None; "
        "repeat the command with another folder: --out DIR"
    )
    assert error.exit_code == UsageError.exit_code
    assert (error.kind, error.subject, error.value, error.allowed) == ("setting-differs", "seed", None, 1)


def test_another_version_of_a_format_comes_with_both_and_the_way_out() -> None:
    file = ROOT / "plan.json"
    words = "format 2 cannot be read; this opbench reads format 1; choose another plan"
    assert str(OtherVersion(file, "format", 2, 1, "choose another plan")) == f"{file}: {words}"
    assert str(OtherVersion(Location(file, 3), "format", 2, 1, "choose another plan")) == f"{file}:3: {words}"
    assert "has no key 'format'" in str(OtherVersion(file, "format", None, 1, "choose another plan"))


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    error = MissingExtra("reading ONNX needs the package onnx", "onnx", ", or take a saved network")
    command = f"install the missing package with: {pip_install('onnx')}"
    assert str(error) == f"reading ONNX needs the package onnx; {command}, or take a saved network"
    assert error.exit_code == EXIT_ENVIRONMENT


def test_runs_that_are_not_comparable_come_with_each_difference_and_the_way_to_force_it() -> None:
    differences = [Difference("gpu", "NVIDIA H200", "NVIDIA H100", True), Difference("backend", "cpu", "cuda", True)]
    lines = str(NotComparable(ROOT / "a", ROOT / "b", differences)).splitlines()
    assert lines[1:3] == ["  gpu: NVIDIA H200 against NVIDIA H100", "  backend: cpu against cuda"]
    assert "opbench compare --force" in lines[3]


def test_each_file_of_messages_belongs_to_a_test() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    files = {path.stem for path in MESSAGES.iterdir()}
    assert files and files == {name for name in files if f'same_messages("{name}"' in sources}


def test_an_error_that_repeats_another_has_its_fields() -> None:
    first = NotAllowed("n = 3 is not allowed", subject="n", value=3, allowed="even")
    again = LaunchError(f"a.toml: {first}", kind="bad-file", cause=first)
    assert (again.kind, again.subject, again.value, again.allowed) == ("bad-file", "n", 3, "even")
    other = LaunchError("a.toml: no", value=5, allowed="odd", cause=first)
    assert (other.kind, other.subject, other.value, other.allowed) == ("not-allowed", "n", 5, "odd"), "the caller's own"
    named = UsageError("a.toml: no", cause=UsageError(unknown_name("operator", "x", NAMES)))
    assert (named.kind, named.value, named.unknown) == ("unknown-name", "x", unknown_name("operator", "x", NAMES))
    lost = pickle.loads(pickle.dumps(again))
    assert (lost.kind, lost.subject, str(lost)) == (again.kind, again.subject, str(again))
