"""Which tests only `make test-all` runs, read from long_tests.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.common import ROOT

FILE = ROOT / "tests" / "long_tests.toml"


@dataclass(frozen=True)
class LongTest:
    """A test function that `make test` leaves out, or of which it runs some parameter sets."""

    name: str
    """Such as "networks/test_training.py::test_a_seed_repeats"."""
    reason: str
    sample: int = 0
    """How many parameter sets `make test` runs all the same."""


def read_long_tests() -> list[LongTest]:
    """Return the entries of long_tests.toml in their order."""
    groups = tomllib.loads(FILE.read_text())["long"]
    return [LongTest(name, group["reason"], group.get("sample", 0)) for group in groups for name in group["tests"]]


def long_items(ids: Sequence[str], long_tests: Sequence[LongTest]) -> Iterator[tuple[int, str]]:
    """Yield the position of each id that is left to `make test-all`, with the reason; a sample is spread evenly."""
    places: dict[str, list[int]] = {}
    for place, identifier in enumerate(ids):
        places.setdefault(identifier.partition("[")[0].removeprefix("tests/"), []).append(place)
    for test in long_tests:
        found = places.get(test.name, [])
        step = -(-len(found) // test.sample) if test.sample else 0
        yield from ((place, test.reason) for number, place in enumerate(found) if not step or number % step)
