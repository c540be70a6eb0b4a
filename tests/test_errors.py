"""The words of errors that every room raises; other tests assert their fields."""

from __future__ import annotations

import pytest

from opbench.errors import LaunchError, Location, Reason, SettingDiffers, UsageError, unknown
from support.common import ROOT

NAMES = ("relu", "matmul")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UsageError(unknown("operator", "rellu", NAMES)), "unknown operator 'rellu'; did you mean 'relu'?"),
        (UsageError(unknown("operator", "x", NAMES)), "unknown operator 'x'; known: matmul, relu"),
        (
            LaunchError(unknown("buffer", "matmull", iter(NAMES), "opbench list operators", where="k")),
            "k: unknown buffer 'matmull'; did you mean 'matmul'? (opbench list operators)",
        ),
    ],
)
def test_a_name_that_is_not_known_comes_with_the_nearest_or_with_all(error: UsageError, words: str) -> None:
    assert str(error) == error.message == words
    assert error.unknown is not None and error.unknown.known == ("matmul", "relu")


def test_a_location_stands_first_and_other_errors_have_no_name() -> None:
    error = UsageError("x is not allowed", Location(ROOT / "a.cu", 3))
    assert str(error) == f"{ROOT / 'a.cu'}:3: x is not allowed"
    assert error.reason == Reason("x is not allowed", Location(ROOT / "a.cu", 3)) and error.unknown is None


def test_a_setting_that_differs_comes_with_both_values_and_the_way_out() -> None:
    error = SettingDiffers(ROOT / "results.jsonl", "seed", 1, None)
    assert str(error) == f"{ROOT / 'results.jsonl'}: was begun with seed = 1, not None; choose another --out DIR"
    assert error.exit_code == UsageError.exit_code
