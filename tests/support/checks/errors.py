"""Demand the fields of an error rather than its words, which tests/test_errors.py holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from opbench.errors import OpbenchError, OtherVersion, SettingDiffers, UsageError
from opbench.paths import MissingExtra


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
    assert (name.what, name.seen) == (what, seen)
    assert nearest in (None, name.nearest) and where in (None, name.where) and hint in (None, name.hint)
    assert known in (None, name.known)


@contextmanager
def refuses_version(key: str, seen: object, known: object = None) -> Iterator[None]:
    """Demand an error about another version of a file's format; `known` None may be any version."""
    with pytest.raises(OtherVersion) as raised:
        yield
    assert (raised.value.key, raised.value.seen) == (key, seen) and known in (None, raised.value.known)


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Demand an error about a package that an extra of opbench installs."""
    with pytest.raises(MissingExtra) as raised:
        yield
    assert raised.value.extra == extra


@contextmanager
def refuses_setting(key: str, before: object, now: object) -> Iterator[None]:
    """Demand an error about results that were begun with another setting."""
    with pytest.raises(SettingDiffers) as raised:
        yield
    assert (raised.value.key, raised.value.before, raised.value.now) == (key, before, now)
