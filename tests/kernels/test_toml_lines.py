"""The lines of a TOML text's keys and list items."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest

from opbench.kernels.header_text import split_header
from opbench.kernels.toml_lines import KeyPath, key_lines
from support.common import CATALOG

TEXT = '''# a comment with a = 1
title = """three
lines = 2
"""
"quoted key" = 'x # none' # a comment
a.b.c = [1, # one
  [2, "]"], { d = "}", "e.f" = [3] },
]
[table]
x = { y = 1, z = 2 }

[[list]]
x = 1
[list.inner]
x = 1
[[list]]
x = 1979-05-27
'''
EXPECTED = {
    ("title",): 2, ("quoted key",): 5, ("a",): 6, ("a", "b"): 6, ("a", "b", "c"): 6, ("a", "b", "c", 0): 6,
    ("a", "b", "c", 1): 7, ("a", "b", "c", 1, 0): 7, ("a", "b", "c", 1, 1): 7, ("a", "b", "c", 2): 7,
    ("a", "b", "c", 2, "d"): 7, ("a", "b", "c", 2, "e.f"): 7, ("a", "b", "c", 2, "e.f", 0): 7,
    ("table",): 9, ("table", "x"): 10, ("table", "x", "y"): 10, ("table", "x", "z"): 10, ("list",): 12,
    ("list", 0): 12, ("list", 0, "x"): 13, ("list", 0, "inner"): 14, ("list", 0, "inner", "x"): 15,
    ("list", 1): 16, ("list", 1, "x"): 17,
}  # fmt: skip


def key_paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key and list item that tomllib read."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from key_paths(item, (*path, key))


def test_each_key_and_item_has_its_line() -> None:
    assert set(EXPECTED) == set(key_paths(tomllib.loads(TEXT)))
    assert key_lines(TEXT) == EXPECTED


OPERATORS = CATALOG.operator_names()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_headers_have_a_line_for_all_that_tomllib_reads(operator: str) -> None:
    paths = {variant.path for variant in CATALOG.variants(operator)}
    for path in paths:
        toml = split_header(path, path.read_text()).toml
        assert set(key_lines(toml)) == set(key_paths(tomllib.loads(toml))), path
