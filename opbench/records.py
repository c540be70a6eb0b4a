"""Dataclasses from JSON values, checked by their declared types, and back."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | float | bool | None"
T = TypeVar("T")


def from_json(kind: type[T], value: object) -> T:
    """A value of a declared type: dataclasses from objects, tuples from lists, enumerations from their values.

    Keys that a dataclass does not know are left out: they are a later version's. Raises ValueError that names the
    place, the value and what is allowed there.
    """
    found: T = _decode(kind, value, "")
    return found


def to_json(value: object, *, sparse: bool = False) -> Any:
    """The inverse of `from_json`: dataclasses as objects, tuples as lists.

    With `sparse`, fields of dataclasses that have their default are left out.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        members = [(f, getattr(value, f.name)) for f in fields(value)]
        return {f.name: to_json(of, sparse=sparse) for f, of in members if not (sparse and of == _default(f))}
    if isinstance(value, Mapping):
        return {str(key): to_json(of, sparse=sparse) for key, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(of, sparse=sparse) for of in value]
    return value


def _default(member: Field[Any]) -> object:
    """A field's default; MISSING where it has none."""
    return member.default if member.default_factory is MISSING else member.default_factory()


@cache
def _members(kind: type) -> tuple[tuple[Field[Any], Any], ...]:
    """A dataclass's fields with their types."""
    hints = get_type_hints(kind)
    return tuple((f, hints[f.name]) for f in fields(kind) if f.init)


def _refused(value: object, place: str, allowed: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{place} = {shown if len(shown) < 60 else shown[:57] + '...'} is not allowed; {allowed}")


def _decode(kind: Any, value: object, place: str) -> Any:
    """`kind` is a type as `get_type_hints` gives it."""
    if kind in (Any, object):
        return value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, bool, float):
        if type(value) is not kind:
            raise _refused(value, place, f"a {kind.__name__}")
        return value
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind):
            raise _refused(value, place, f"one of {', '.join(map(str, get_args(kind)))}")
        return value
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, place)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(get_args(kind)[1], of, f"{place}.{key}") for key, of in _object(value, place).items()}
    if origin in (list, tuple):
        return _list(origin, get_args(kind), value, place)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _decode_enum(kind, value, place)
    return _dataclass(kind, _object(value, place), place)


def _object(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _refused(value, place, "a dict")
    return value


def _one_of(kinds: tuple[object, ...], value: object, place: str) -> object:
    """The first of several types that takes the value; null is None's alone."""
    if value is None and type(None) in kinds:
        return None
    found: ValueError | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _decode(kind, value, place)
            except ValueError as error:
                found = found or error
    raise found or _refused(value, place, "nothing")


def _list(origin: type, kinds: tuple[object, ...], value: object, place: str) -> object:
    if not isinstance(value, (list, tuple)):
        raise _refused(value, place, "a list")
    if origin is list or kinds[-1] is Ellipsis:
        if kinds[0] is float and all(type(of) is float for of in value):
            return origin(value)  # thousands of samples a run
        return origin(_decode(kinds[0], of, f"{place}[{n}]") for n, of in enumerate(value))
    if len(value) != len(kinds):
        raise _refused(value, place, f"{len(kinds)} values")
    return tuple(_decode(kind, of, f"{place}[{n}]") for n, (kind, of) in enumerate(zip(kinds, value, strict=True)))


def _decode_enum(kind: type[enum.Enum], value: object, place: str) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        raise _refused(value, place, f"one of {', '.join(str(member.value) for member in kind)}") from None


def _dataclass(kind: Any, value: Mapping[str, object], place: str) -> object:
    given = {}
    for member, declared in _members(kind):
        if member.name in value:
            given[member.name] = _decode(declared, value[member.name], f"{place}.{member.name}".lstrip("."))
        elif member.default is MISSING and member.default_factory is MISSING:
            raise ValueError(f"{f'{place}.{member.name}'.lstrip('.')} is missing")
    return kind(**given)
