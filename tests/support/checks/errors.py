"""Demand the fields of an error rather than its words, which tests/test_errors.py and tests/messages/ hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from opbench.errors import OpbenchError, OtherVersion, SettingDiffers, UsageError
from opbench.paths import MissingExtra
from support.common import ROOT

MESSAGES = ROOT / "tests/messages"
"""One file per surface with the wording of its errors; `make messages` writes them."""
KIND = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
ANY = object()


@dataclass(frozen=True)
class Refusal:
    """The fields of an error, for tables of wrong inputs; a field not given may have any value.

    `at` is the name of a file and a line. Of a path the last part counts.
    """

    kind: str
    subject: object = ANY
    value: object = ANY
    allowed: object = ANY
    at: object = ANY


@contextmanager
def refuses(
    kind: str | Refusal,
    subject: object = ANY,
    *,
    value: object = ANY,
    allowed: object = ANY,
    at: object = ANY,
    error: type[Exception] | tuple[type[Exception], ...] = UsageError,
) -> Iterator[pytest.ExceptionInfo[OpbenchError]]:
    """Demand an error with these fields, or with those of a `Refusal`; it yields what pytest knows of the error."""
    demanded = kind if isinstance(kind, Refusal) else Refusal(kind, subject, value, allowed, at)
    assert KIND.fullmatch(demanded.kind), f"{demanded.kind!r} is no code of words and dashes"
    with pytest.raises(error) as raised:
        yield raised  # type: ignore[misc]
    seen = error_fields(raised.value)
    pairs = ((key, getattr(demanded, key), seen[key]) for key in seen)
    wrong = [f"{key} = {of!r}, demanded {want!r}" for key, want, of in pairs if want is not ANY and want != of]
    assert not wrong, f"{'; '.join(wrong)}; the error: {raised.value}"


def error_fields(error: BaseException) -> dict[str, object]:
    """Return the fields of an error by name: kind, subject, value, allowed, and the file's name and line as `at`."""
    names = ("kind", "subject", "value", "allowed")
    fields = {name: _last_part(getattr(error, name, None)) for name in names}
    place = getattr(error, "location", None)
    return {**fields, "at": (place.file.name, place.line) if place else None}


def _last_part(value: object) -> object:
    return value.name if isinstance(value, Path) else value


def message_of(call: Callable[[], object]) -> str:
    """Return the message of the error that a call must raise."""
    with pytest.raises((OpbenchError, ValueError)) as raised:
        call()
    return str(raised.value)


def same_messages(surface: str, messages: Mapping[str, str], folder: Path) -> None:
    """Compare messages with the surface's file in tests/messages/, or write this file for `make messages`.

    In the file, "." stands for `folder`, where the test wrote what is refused.
    """
    assert messages
    text = "".join(f"{name}\n    {_portable(message, folder)}\n" for name, message in messages.items())
    path = MESSAGES / f"{surface}.txt"
    if "OPBENCH_WRITE_MESSAGES" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "other messages; if the new ones are right: make messages"


def _portable(message: str, folder: Path) -> str:
    return message.replace(str(folder), ".").replace(str(ROOT), "ROOT").replace("\n", "\n    ")


@contextmanager
def refuses_name(
    what: str,
    seen: str,
    nearest: str | None = None,
    *,
    where: str | None = None,
    hint: str | None = None,
    known: tuple[str, ...] | None = None,
    error: type[OpbenchError] = UsageError,
) -> Iterator[None]:
    """Demand an error about an unknown name; a field that is None may have any value."""
    with pytest.raises(error) as raised:
        yield
    name = raised.value.unknown
    assert name is not None, f"no error about a name: {raised.value}"
    assert (name.noun, name.name) == (what, seen)
    assert nearest in (None, name.nearest) and where in (None, name.place) and hint in (None, name.hint)
    assert known in (None, name.known_names)


def refuses_version(key: str, seen: object, known: object = ANY) -> AbstractContextManager[object]:
    """Demand an error about another version of a file's format; `known` may be any version if it is not given."""
    return refuses("other-version", key, value=seen, allowed=known, error=OtherVersion)


def needs_extra(extra: str) -> AbstractContextManager[object]:
    """Demand an error about a package that an extra of opbench installs."""
    return refuses("missing-extra", extra, error=MissingExtra)


def refuses_setting(key: str, before: object, now: object) -> AbstractContextManager[object]:
    """Demand an error about results that were begun with another setting."""
    return refuses("setting-differs", key, value=now, allowed=before, error=SettingDiffers)
