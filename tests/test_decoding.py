"""Dataclasses from JSON: what comes back is what was written, and what is refused is named."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Literal

import pytest

from opbench.records import from_json, to_json
from support.checks.errors import Refusal, refuses


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    size: int
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["one", "two"] = "one"
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: dict[str, float] = field(default_factory=dict)
    colour: Colour = Colour.RED
    clocks: tuple[float | None, ...] = ()


FULL = Outer("a", "two", Inner(1, (2, 3)), (Inner(4),), {"x": 1.0}, Colour.RED, (1.0, None))


def test_what_was_written_is_read() -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(FULL)))) == FULL


def test_missing_fields_take_their_default_and_unknown_ones_are_left_out() -> None:
    assert from_json(Outer, {"name": "a", "of_a_later_version": 3}) == Outer("a")


def test_whole_numbers_are_taken_for_floats_and_not_the_other_way() -> None:
    assert from_json(Outer, {"name": "a", "by_name": {"x": 1}}).by_name == {"x": 1.0}
    with refuses("not-allowed", "inner.size", value=1.5, allowed="int", error=ValueError):
        from_json(Outer, {"name": "a", "inner": {"size": 1.5}})


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ({}, Refusal("missing-key", "name")),
        ({"name": 3}, Refusal("not-allowed", "name", value=3, allowed="str")),
        ({"name": "a", "kind": "three"}, Refusal("not-allowed", "kind", value="three", allowed="one of one, two")),
        ({"name": "a", "colour": "blue"}, Refusal("not-allowed", "colour", value="blue", allowed="one of red")),
        ({"name": "a", "many": [{"size": 1}, {}]}, Refusal("missing-key", "many[1].size")),
        (
            {"name": "a", "inner": {"size": 1, "place": [1]}},
            Refusal("not-allowed", "inner.place", value=[1], allowed="array of length 2"),
        ),
        ({"name": "a", "inner": [1]}, Refusal("not-allowed", "inner", value=[1], allowed="object | null")),
        ({"name": "a", "many": {}}, Refusal("not-allowed", "many", value={}, allowed="array")),
        ({"name": "a", "by_name": {"x": True}}, Refusal("not-allowed", "by_name.x", value=True, allowed="float")),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(value: dict[str, object], refusal: Refusal) -> None:
    with refuses(refusal, error=ValueError):
        from_json(Outer, value)
