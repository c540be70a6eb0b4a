"""Expressions of headers: what they may hold and what they give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.errors import UsageError
from opbench.kernels.expression import cdiv, evaluate, names, parse
from opbench.kernels.scalar import Scalar
from support.checks.errors import refuses, refuses_name


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_cdiv_covers_and_never_overshoots(a: int, b: int) -> None:
    assert cdiv(a, b) * b >= a > (cdiv(a, b) - 1) * b or a == 0 == cdiv(a, b)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cdiv(n, TILE)", 7),
        ("n * TILE + 2 ** 3", 1608),
        ("layout == 'nchw' and n > 1", True),
        ("4 if n > 1 else 8", 4),
        ("n % 32 // 2", 2),
        ("n in (1, 100)", True),
        ("min(n, 1024)", 100),
        ("-n", -100),
        ("1 < n <= 100", True),
    ],
)
def test_values(text: str, value: object) -> None:
    assert evaluate(text, {"n": 100, "TILE": 16, "layout": "nchw"}) == value


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "n.real", "[n]", "lambda: 1", "n if", "open('x')", "n[0]", "f'{n}'", "max(n, key=n)", "1.5"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        evaluate(text, {"n": 1})
    assert raised.value.kind in ("not-allowed-in-expression", "not-an-expression")


def test_unknown_name_lists_the_known_ones() -> None:
    with refuses_name("name", "k", known=("m", "n")):
        evaluate("k", {"n": 1, "m": 2})


def test_division_by_zero_is_a_usage_error() -> None:
    with refuses("expression-fails", "n // m", value="ZeroDivisionError"):
        evaluate("n // m", {"n": 1, "m": 0})


def test_names_leave_out_functions() -> None:
    assert names("cdiv(n, TILE) + min(m, 2)") == {"n", "TILE", "m"}


@pytest.mark.parametrize(
    "text",
    [
        "10 ** 10 ** 10",
        "1 << 10 ** 9",
        "2 ** 63 * 2",
        "9223372036854775807 + 2",
        "'%9999999999d' % 1",
        "'a' * 10 ** 9",
        "2 ** -1",
    ],
)
def test_integers_beyond_64_bits_are_refused_before_they_are_computed(text: str) -> None:
    with refuses("expression-fails") as raised:
        evaluate(text, {})
    assert raised.value.value in ("OverflowError", "TypeError", "ValueError")


def test_the_largest_integers_of_64_bits_are_values() -> None:
    assert evaluate("2 ** 62 + (2 ** 62 - 1)", {}) == 2**63 - 1
    assert evaluate("0 ** 10 ** 18", {}) == 0 and evaluate("-(2 ** 62)", {}) == -(2**62)


def test_an_expression_nested_too_deeply_is_no_traceback() -> None:
    for text in ("(" * 5000 + "1" + ")" * 5000, "not " * 50000 + "1", "1" + "+1" * 50000):
        with refuses("expression-too-long", allowed=600):
            evaluate(text, {})
    assert evaluate("1" + "+1" * 299, {}) == 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 / sqrt(d)", 0.125),
        ("0.5 * d", 32.0),
        ("d ** -0.5", 0.125),
        ("1 - 0.9 ** d", 1 - 0.9**64),
        ("log(d) / log(2) if d > 1 else 0", 6.0),
        ("cdiv(d, 3) // 2 + 1", 12),
    ],
)
def test_floats_have_expressions_of_floats(text: str, value: float) -> None:
    assert evaluate(text, {"d": 64}, is_real=True) == pytest.approx(value)
    assert Scalar("f32", text).bound({"d": 64}).value == pytest.approx(value)


@pytest.mark.parametrize("text", ["1 / n", "0.5 * n", "sqrt(n)"])
def test_sizes_have_none(text: str) -> None:
    with refuses("not-allowed-in-expression", text):
        parse(text)


@pytest.mark.parametrize("text", ["1 / (n - n)", "(-1.0) ** 0.5", "sqrt(0 - n)", "0.5 // n", "10.0 ** 400"])
def test_an_expression_of_floats_that_fails_is_a_usage_error(text: str) -> None:
    with refuses("expression-fails", text):
        evaluate(text, {"n": 4}, is_real=True)
