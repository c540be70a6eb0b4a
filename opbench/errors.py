"""Every error that a user can cause, with the exit code it ends in.

OpbenchError
├── UsageError          2   a name, a header, a suite or a flag is wrong
├── EnvironmentFault    3   no GPU, no compiler, no permission, no space
├── CompileError        1   a kernel does not compile: costs its own cases only
└── LaunchError         1   a kernel could not run or died: costs its own case only
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

EXIT_OK = 0
EXIT_WRONG = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_SLOWER = 1
"""Exit code of `opbench compare` for a confirmed regression; the other codes apply to `compare` too."""
EXIT_UNDECIDED = 4
EXIT_BROKEN = 5
EXIT_NOTHING = 6


@dataclass(frozen=True)
class Location:
    """A line of a file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Reason:
    """Why something failed or is unsupported, as data that processes pass on."""

    message: str = ""
    location: Location | None = None
    kind: str = ""
    """The error's code, such as "launch-limit"; empty for a reason that is no error's."""
    subject: str = ""
    """The file, key, node, kernel or rule that is wrong."""

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message

    def with_prefix(self, prefix: str) -> Reason:
        """Return the same reason with `prefix` before its message, such as "while measured: "."""
        return replace(self, message=f"{prefix}{self.message}")


MAX_NAMES_LISTED = 6
"""Most known names in a message that has a command which lists all of them."""
WORD_LIKENESS = 0.8
"""Smallest ratio of `difflib` at which a name counts as one word of a longer name."""


@dataclass(frozen=True)
class UnknownName:
    """The message for an unknown name, such as of an operator; it suggests the nearest known name or lists some."""

    noun: str
    """The kind of name, such as "operator"."""
    name: str
    known_names: tuple[str, ...]
    hint: str = ""
    place: str = ""
    """What holds the name, such as a file or a node."""

    @property
    def nearest(self) -> str:
        """Return the known name that the user probably meant, or ""."""
        return next(iter(difflib.get_close_matches(self.name, self.known_names, n=1)), "")

    @property
    def with_this_word(self) -> list[str]:
        """Return the known names that have the name as one of their words, such as "global-race" for "race"."""
        words = {known_name: re.split(r"[-_ ]", known_name) for known_name in self.known_names}
        return [name for name, parts in words.items() if difflib.get_close_matches(self.name, parts, 1, WORD_LIKENESS)]

    def __str__(self) -> str:
        has_command = self.hint.startswith("opbench ")
        listed = self.known_names[: MAX_NAMES_LISTED if has_command else None]
        omitted = len(self.known_names) - len(listed)
        known = ", ".join(listed) + (f" and {omitted} more" if omitted else "")
        suggestions = [self.nearest] if self.nearest else self.with_this_word[:MAX_NAMES_LISTED]
        quoted = [f"'{name}'" for name in suggestions]
        alternatives = " or ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
        tail = f"did you mean {alternatives}?" if suggestions else f"known: {known}"
        location = f"{self.place}: " if self.place else ""
        hint = f"list all: {self.hint}" if has_command else self.hint
        return f"{location}unknown {self.noun} '{self.name}'; {tail}" + (f" ({hint})" if hint else "")


class NotAllowed(ValueError):
    """An error for a value that is not allowed, from code that does not know which file or option has the value.

    An `OpbenchError` with this error as its `cause` copies its fields.
    """

    def __init__(
        self,
        message: str | UnknownName,
        *,
        kind: str = "not-allowed",
        subject: object = "",
        value: object = None,
        allowed: object = None,
    ) -> None:
        super().__init__(str(message))
        self.unknown = message if isinstance(message, UnknownName) else None
        self.kind, self.subject, self.value, self.allowed = kind, subject, value, allowed


class OpbenchError(Exception):
    """An error with a message for the user: what is wrong, the value seen, what is allowed, the next command.

    It prints as `file:line: message` if it has a location. The same meaning is there as data: `kind`, `subject`,
    `value` and `allowed`. Fields that are not set are copied from `cause`.
    """

    exit_code = EXIT_WRONG
    kind = ""
    """A short code for what is wrong, such as "not-json"; the code stays when the message is reworded."""
    subject: object = ""
    """The file, key, node or kernel that is wrong."""
    value: object = None
    """The value seen."""
    allowed: object = None
    """The allowed values, or the limit."""

    def __init__(
        self,
        message: str | UnknownName = "",
        location: Location | None = None,
        *,
        kind: str = "",
        subject: object = "",
        value: object = None,
        allowed: object = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(str(message))
        self.message = str(message)
        self.location = location
        self.unknown = message if isinstance(message, UnknownName) else getattr(cause, "unknown", None)
        """The unknown name, if the error is about one; else None."""
        if self.unknown is not None:
            kind, subject, value, allowed = (
                "unknown-name",
                self.unknown.noun,
                self.unknown.name,
                self.unknown.known_names,
            )
        elif isinstance(cause, (OpbenchError, NotAllowed)):
            kind, subject = kind or cause.kind, subject or cause.subject
            value = cause.value if value is None else value
            allowed = cause.allowed if allowed is None else allowed
        self.kind, self.subject, self.value, self.allowed = kind or self.kind, subject, value, allowed

    def __str__(self) -> str:
        return str(self.reason)

    def __reduce__(self) -> tuple[Callable[..., OpbenchError], tuple[object, ...]]:
        """Pass the error to another process with its class and all fields; values that are no plain data as text."""
        fields = {**vars(self), **{name: _plain(getattr(self, name)) for name in ("subject", "value", "allowed")}}
        return _unpickled, (type(self), self.args, fields)

    @property
    def reason(self) -> Reason:
        """Return the message, the location and the meaning as data."""
        return Reason(self.message, self.location, self.kind, str(self.subject))


def _unpickled(error_class: type[OpbenchError], args: tuple[object, ...], fields: dict[str, object]) -> OpbenchError:
    error = error_class.__new__(error_class, *args)
    vars(error).update(fields)
    return error


def _plain(value: object) -> object:
    """Return data that every process can read: numbers, texts and paths, also in tuples; another value as text."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value if value is None or isinstance(value, (bool, int, float, str, Path)) else str(value)


class UsageError(OpbenchError):
    """The user named something that does not exist or wrote something that is not allowed."""

    exit_code = EXIT_USAGE


class Unreadable(UsageError):
    """The error for a file that the system cannot read. The default `remedy` is to check the path."""

    kind = "unreadable"

    def __init__(self, path: Path, error: OSError, remedy: str = "") -> None:
        remedy = remedy or f"check the path and its permissions with: ls -l {path}"
        super().__init__(
            f"{path}: cannot be read: {error.strerror or error}; {remedy}", subject=path, value=error.errno
        )


class SettingDiffers(UsageError):
    """The error for an output folder whose earlier results were made with another setting, such as another seed."""

    kind = "setting-differs"

    def __init__(self, file: Path, key: str, stored_value: object, new_value: object) -> None:
        message = (
            f"{file}: has results made with {key} = {stored_value}, and this command has {key} = {new_value}; "
            "repeat the command with another folder: --out DIR"
        )
        super().__init__(message, subject=key, value=new_value, allowed=stored_value)


class OtherVersion(UsageError):
    """The error for a file whose format version this opbench cannot read."""

    kind = "other-version"

    def __init__(
        self, file_or_location: Path | Location, key: str, found_version: object, read_version: object, remedy: str
    ) -> None:
        problem = f"has no key '{key}'" if found_version is None else f"{key} {found_version!r} cannot be read"
        message = f"{problem}; this opbench reads {key} {read_version}; {remedy}"
        location = file_or_location if isinstance(file_or_location, Location) else None
        super().__init__(
            message if location else f"{file_or_location}: {message}",
            location,
            subject=key,
            value=found_version,
            allowed=read_version,
        )


class EnvironmentFault(OpbenchError):
    """The machine lacks what the command needs."""

    exit_code = EXIT_ENVIRONMENT


class CompileError(OpbenchError):
    """A kernel did not compile; the message may be the compiler's own, with its file and line."""

    kind = "does-not-compile"


class LaunchError(OpbenchError):
    """A kernel could not be launched, or it failed while it ran."""

    kind = "launch-failed"


class NotFinite(LaunchError):
    """A loss that is NaN or infinite; the message names the step and the node that computed the first such value."""

    kind = "not-finite"


@contextlib.contextmanager
def with_location(locate: Callable[[], Location | None]) -> Iterator[None]:
    """Give each error raised inside the context the location that `locate` returns, unless it has one."""
    try:
        yield
    except OpbenchError as error:
        error.location = error.location or locate()
        raise


def unknown_name(noun: str, name: str, known_names: Iterable[str], hint: str = "", place: str = "") -> UnknownName:
    """Return the message for the unknown name `name`; `noun` is the kind of name, `place` the file or node with it."""
    return UnknownName(noun, name, tuple(sorted(known_names)), hint, place)


def writing_remedy(error: OSError) -> str:
    """Return the remedy for a file that cannot be written, such as "free some space or "; empty if it is unknown."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or "
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "get the permission to write there or "
    return ""
