"""Options as fields of a frozen dataclass, so that each name, type, default and help text is defined in one place.

`opbench.cli.dataclass_options` builds the options of a command from them; in Python the fields are keyword arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TypeVar, get_args, get_origin, get_type_hints

from opbench.errors import NotAllowed

T = TypeVar("T")
METADATA_KEY = "option"


@dataclass(frozen=True)
class Option:
    """The properties of a field as a command-line option, in addition to its name, type and default."""

    help: str
    flags: tuple[str, ...] = ()
    """Names on the command line if they differ from the field's name.

    For a field that is true by default, the flag that turns it off.
    """
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    greater_than: float | None = None
    """A number must be greater than this; None for no limit."""
    folder: bool | None = None
    """True if a path must be a folder, False if it must be a file, None for either."""
    completer: str = ""
    """The function of `opbench.cli.completion` that completes the value."""
    factor: int = 1
    """The factor from the option's value to the field's value: 1 << 20 for an option in MiB and a field in bytes."""
    parse: Callable[[str], object] | None = None
    """Converts text to the value; raises ValueError, whose message is shown after the option's name."""


def option(default: T, help: str, *flags: str, **details: object) -> T:
    """Return a dataclass field with a default and an `Option` in its metadata."""
    option: T = field(default=default, metadata={METADATA_KEY: Option(help, flags, **details)})  # type: ignore[arg-type]
    return option


VARIANTS_HELP = "Add the variants of another folder: one subfolder per operator, as in variants/; repeatable."


def variant_folders() -> tuple[Path, ...]:
    """Return the dataclass field for extra folders of variants, which all commands share."""
    return option((), VARIANTS_HELP, metavar="DIR", folder=True)


def argument(metavar: str, *, completer: str = "") -> dict[str, Option]:
    """Return the metadata of a field without a default, which is a positional argument of its command."""
    return {METADATA_KEY: Option("", metavar=metavar, completer=completer)}


def option_fields(dataclass_type: type) -> dict[str, tuple[Field[object], Option]]:
    """Return the fields that are options, by name: those of the class itself first, then those of its bases."""
    fields_by_name = {f.name: f for f in fields(dataclass_type)}
    ordered_names = [name for base in dataclass_type.__mro__ for name in inspect.get_annotations(base)]
    return {
        name: (fields_by_name[name], fields_by_name[name].metadata[METADATA_KEY])
        for name in ordered_names
        if METADATA_KEY in fields_by_name[name].metadata
    }


def type_of(hint: object) -> type:
    """Return the type of one value of a field: Path for both `tuple[Path, ...]` and `Path | None`."""
    if isinstance(hint, type) and not get_args(hint):
        return hint
    return next(type_of(part) for part in get_args(hint) if part not in (type(None), ...))


def set_types(options: object) -> None:
    """Convert text to paths and lists to tuples in an instance under construction, so that callers may pass either.

    Extra folders of variants become absolute.
    """
    for name, hint in get_type_hints(type(options)).items():
        value = getattr(options, name)
        is_tuple, is_path = get_origin(hint) is tuple, _is_path(hint)
        if is_tuple and not isinstance(value, Mapping):
            value = tuple(Path(item) if is_path else item for item in value)
            if name == "variants":
                value = tuple(folder.resolve() for folder in value)
        elif is_path and isinstance(value, str):
            value = Path(value) if value else None
        object.__setattr__(options, name, value)


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def read_bytes(text: str) -> int:
    """Return the number of bytes of a text such as "900MB"; raise ValueError for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text}: is not a size; give a size such as 900MB or 1.2GB (10**6 and 10**9 bytes)")
    return round(float(match[1]) * UNITS[(match[2] or "B").upper()])


def read_seconds(minimum_s: float) -> Callable[[str], float]:
    """Return a function that reads a time such as 60s, 90, 5min or 1h in seconds.

    The function raises ValueError for less than `minimum_s`.
    """

    def read(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)?", text)
        value_s = float(match[1]) * {"min": 60, "h": 3600}.get(match[2], 1) if match else 0.0
        if value_s < minimum_s:
            raise NotAllowed(
                f"{text!r} is not allowed; give a time of {minimum_s:g}s or more, such as 60s, 5min or 1h",
                kind="not-allowed",
                value=text,
                allowed=minimum_s,
            )
        return value_s

    return read


def _is_path(hint: object) -> bool:
    return hint is Path or Path in get_args(hint)
