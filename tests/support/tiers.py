"""Which tests only `make test-all` runs, read from long_tests.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from support.common import ROOT

FILE = ROOT / "tests" / "long_tests.toml"


@dataclass(frozen=True)
class LongTests:
    """Tests that `make test` leaves out, with the reason: those named, or all that use a fixture."""

    reason: str
    tests: tuple[str, ...] = ()
    """Such as "networks/test_training.py::test_it_learns"."""
    fixture: str = ""
    sample: int = 0
    """How many parameter sets of each test, or how many of each package's tests, `make test` runs all the same."""
    daily: bool = False
    """Whether the sample is another one each day."""


def read_long_tests() -> list[LongTests]:
    """Return the groups of long_tests.toml in their order."""
    groups = tomllib.loads(FILE.read_text())["long"]
    return [LongTests(**{**group, "tests": tuple(group.get("tests", ()))}) for group in groups]


def long_items(
    items: Sequence[tuple[str, Collection[str]]], groups: Sequence[LongTests], day: int
) -> Iterator[tuple[int, str]]:
    """Yield the position of each item that is left to `make test-all`, with the reason; a sample is spread evenly.

    An item is a node id with the names of its fixtures. A test that is named is in no group of a fixture. `day` is the
    number of the day, which shifts daily samples.
    """
    named = {name for group in groups for name in group.tests}
    sets: dict[tuple[int, str], list[int]] = {}
    for index, (identifier, fixtures) in enumerate(items):
        name = identifier.partition("[")[0].removeprefix("tests/")
        for number, group in enumerate(groups):
            if name in group.tests:
                sets.setdefault((number, name), []).append(index)
            elif group.fixture in fixtures and name not in named:
                sets.setdefault((number, name.rpartition("/")[0]), []).append(index)
    for (number, _), places in sets.items():
        sample = groups[number].sample
        step = -(-len(places) // sample) if sample else 0
        first = day if groups[number].daily else 0
        reason = groups[number].reason
        yield from ((place, reason) for index, place in enumerate(places, first) if not step or index % step)
