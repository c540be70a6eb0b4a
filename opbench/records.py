"""Convert JSON values and files to dataclasses, checked by their declared types, and back."""

from __future__ import annotations

import enum
import gzip
import json
import re
import tomllib
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from opbench.errors import NotAllowed, OtherVersion, Unreadable, UsageError, unknown_name

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | float | bool | None"
T = TypeVar("T")

PACKED_SUFFIXES = (".xz", ".gz")
"""Suffixes of files that `xz FILE` or `gzip FILE` made; opbench reads them in place of the plain file."""

_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""One step of a path as msgspec prints it: a field, an index, or some value of a mapping."""


def from_json(expected_type: type[T], value: object) -> T:
    """Return a value of a declared type: dataclasses from objects, tuples from lists, enumerations from their values.

    Keys that a dataclass does not know are ignored, because a later version may write more. Raises NotAllowed with the
    path in the JSON, the value and what is allowed.
    """
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise _validation_error(expected_type, value, str(error)) from None


def with_new_keys(value: Any, **old_by_new: str) -> Any:
    """Return a JSON object with its old keys renamed, given as `new = old`; any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    new_names = {old: new for new, old in old_by_new.items()}
    return {new_names.get(key, key): item for key, item in value.items()}


def stored_file(path: Path) -> Path:
    """Return the path of a stored file, which may exist only in packed form (.xz or .gz)."""
    packed = (path.with_name(path.name + suffix) for suffix in PACKED_SUFFIXES)
    return path if path.exists() else next((twin for twin in packed if twin.exists()), path)


def plain_name(path: Path) -> str:
    """Return the name of a file without the suffix .xz or .gz."""
    return path.stem if path.suffix in PACKED_SUFFIXES else path.name


def unpacked(path: Path) -> bytes:
    """Return the unpacked content of a file, which may end in .xz or .gz; raises OSError if that fails."""
    raw = path.read_bytes()
    try:
        return gzip.decompress(raw) if path.suffix == ".gz" else _unxz(raw) if path.suffix == ".xz" else raw
    except (EOFError, ValueError, zlib.error) as error:
        raise OSError(str(error)) from None


def _unxz(raw: bytes) -> bytes:
    """Return the unpacked content of an .xz file; raises ValueError if it is invalid or Python has no lzma."""
    try:
        import lzma
    except ImportError:
        raise ValueError("this Python has no module lzma; unpack the file with: unxz FILE") from None
    try:
        return lzma.decompress(raw)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None


def read_json(path: Path, remedy: str) -> Any:
    """Return the JSON value of a file, packed or not; raises UsageError, whose message ends with `remedy`."""
    try:
        return json.loads(unpacked(stored_file(path)))
    except OSError as error:
        raise Unreadable(path, error, remedy) from None
    except (ValueError, RecursionError) as error:  # the text is not JSON or not UTF-8, or is nested too deeply
        raise UsageError(f"{path}: is not valid JSON ({error}); {remedy}", kind="not-json", subject=path) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file; raises UsageError with the file's name if it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: is not UTF-8 text: {error}; save the file as UTF-8", kind="unreadable", subject=path
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path}: is not valid TOML: {error}; correct the file there", kind="not-toml", subject=path
        ) from None


def read_record(
    record_type: type[T],
    path: Path,
    version: int | str,
    remedy: str,
    *,
    key: str = "format",
    decode: Callable[[Mapping[str, Any]], T] | None = None,
) -> T:
    """Return the record of a JSON file whose `key` holds the version of its format.

    `decode` builds the record from the content and raises ValueError; without it `from_json` does. Raises UsageError,
    ending with `remedy`, for a file that is unreadable, incomplete or of another version.
    """
    value = read_json(path, remedy)
    found_version = value.get(key) if isinstance(value, dict) else type(value).__name__
    if found_version != version:
        raise OtherVersion(path, key, found_version, version, remedy)
    try:
        return decode(value) if decode else from_json(record_type, value)
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}; {remedy}", cause=error) from None


def to_json(value: object, *, omit_defaults: bool = False) -> Any:
    """Convert a value to JSON values, the inverse of `from_json`: dataclasses to objects, tuples to lists.

    With `omit_defaults`, fields that have their default are omitted.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        members = [(f, getattr(value, f.name)) for f in fields(value)]
        return {
            f.name: to_json(member, omit_defaults=omit_defaults)
            for f, member in members
            if not (omit_defaults and member == _default(f))
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item, omit_defaults=omit_defaults) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(element, omit_defaults=omit_defaults) for element in value]
    return value


def _default(member: Field[Any]) -> object:
    """Return the default of a field; MISSING if it has none."""
    return member.default if member.default_factory is MISSING else member.default_factory()


def _validation_error(expected_type: Any, value: Any, message: str) -> NotAllowed:
    """Return the error for a message of msgspec with the path, the value and what is allowed."""
    text, _, path = message.partition(" - at `$")
    path_text = ""
    for field, index in _PATH_STEP.findall(path):
        expected_type = _member_type(expected_type, field)
        path_key: Any = field or (_refused_key(expected_type, value) if index == "..." else int(index))
        path_text, value = (
            f"{path_text}.{path_key}" if index in ("", "...") else f"{path_text}[{path_key}]",
            value[path_key],
        )
    path_text = path_text.lstrip(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", text):
        key = f"{path_text}.{missing[1]}".lstrip(".")
        return NotAllowed(f"{key} is missing; add the key", kind="missing-key", subject=key)
    if extra := re.fullmatch(r"Object contains unknown field `(.*)`", text):
        known = [name for option in _union_members(expected_type) for name in getattr(option, "__struct_fields__", ())]
        return NotAllowed(unknown_name("key", extra[1], known, place=path_text))
    if not text.startswith(("Expected `", "Invalid enum value")):
        # The dataclass itself wrote this message.
        return NotAllowed(
            f"{path_text}: {text}" if path_text else text, subject=path_text, value=value, kind="not-allowed"
        )
    shown = repr(value)
    expected = re.fullmatch(r"Expected (.*?)(?:, got .*)?", text)
    allowed = expected[1].replace("`", "") if expected else f"one of {', '.join(_allowed_values(expected_type))}"
    return NotAllowed(
        f"{path_text or 'value'} = {shown if len(shown) < 60 else shown[:57] + '...'} is not allowed; write "
        f"{_plain_type_text(allowed) if expected else allowed}",
        subject=path_text or "value",
        value=value,
        allowed=allowed,
    )


TYPE_WORDS = {
    "array": "a list", "object": "a table", "str": "a text", "int": "a whole number", "float": "a number",
    "bool": "true or false",
}  # fmt: skip
"""The words for msgspec's names of types in error messages."""


def _plain_type_text(types_text: str) -> str:
    """Return msgspec's text for allowed types in plain words, such as "a whole number >= 1" for "int >= 1"."""
    words = re.sub(rf"\b({'|'.join(TYPE_WORDS)})\b", lambda match: TYPE_WORDS[match[1]], types_text)
    return words.replace(" | ", " or ")


def _union_members(expected_type: Any) -> tuple[Any, ...]:
    return get_args(expected_type) if get_origin(expected_type) in (Union, types.UnionType) else (expected_type,)


def _member_type(container_type: Any, field: str) -> Any:
    """Return the type of a field of a dataclass, or of the items of a collection."""
    for option in _union_members(container_type):
        if field and (is_dataclass(option) or hasattr(option, "__struct_fields__")):
            return get_type_hints(option)[field]
        if not field and (item_types := [argument for argument in get_args(option) if argument is not Ellipsis]):
            return item_types[-1]
    return object


def _refused_key(expected_type: Any, value: Mapping[str, object]) -> str:
    """Return the first key whose value has the wrong type; msgspec does not name it."""
    for key, item in value.items():
        try:
            msgspec.convert(item, expected_type)
        except msgspec.ValidationError:
            return key
    return next(iter(value))


def _allowed_values(expected_type: Any) -> list[str]:
    """Return the values that a Literal or an enumeration allows."""
    allowed: list[str] = []
    for option in _union_members(expected_type):
        if get_origin(option) is Literal:
            allowed += map(str, get_args(option))
        elif isinstance(option, type) and issubclass(option, enum.Enum):
            allowed += [str(member.value) for member in option]
    return allowed
