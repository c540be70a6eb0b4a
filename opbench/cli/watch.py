"""`opbench check --watch`: files checked again on each save.

Each check is a process of its own in a group of its own, so that a save while it runs, or Ctrl-C, ends it with its
workers and compilers whatever they are doing, and an edit that no compiler takes ends a check, not the watch. What
changed is told from the files' status; the system's events only say when to look, so that editors that rename a new
file over the old one, and files that go and come back, are the same as files that are written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from click.core import ParameterSource

from opbench import paths, units
from opbench.errors import UsageError
from opbench.kernels.folders import Catalog
from opbench.running.targets import is_file
from opbench.source.sources import closure

LOOK_MS = 250
"""How often to look whether the check has ended; a save is told at once."""
SETTLE_MS = 50
"""Silence after which a save counts as done: editors write a file in several steps."""
PATIENCE_S = 2.0
"""How long a check may take to end its workers before it is killed."""
INTERRUPTED = 130

CHECK = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # silent where it is ended while it starts
    "from opbench.cli import main; signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)

Stamp = dict[Path, tuple[int, int, int] | None]
"""Files with their inode, size in bytes and time of the last write in ns; None for one that is not there."""


def watch_targets(targets: Sequence[str], roots: Sequence[Path]) -> NoReturn:
    """Check files now and again on each save, until an interrupt; ends with exit code 130.

    `roots` are further folders laid out as variants/. Raises UsageError for a target that is no file of one's own.
    """
    if not targets:
        raise UsageError("--watch: watches files; name them: opbench check FILE.cu --watch")
    for target in targets:
        if not is_file(target):
            raise UsageError(f"--watch: '{target}' is no FILE.cu; operators and variants are checked without --watch")
        if not Path(target).is_file():
            raise UsageError(f"--watch: {target}: no such file; make one: opbench new variant OPERATOR/NAME")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    watched = Watched(tuple(dict.fromkeys(targets)), tuple(Catalog(roots).include))
    check = _Check(_flags())
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _watch(watched, check)
        finally:
            check.end()
    click.get_current_context().exit(INTERRUPTED)


class Watched:
    """The files and all that they include, as they were when they were last looked at."""

    def __init__(self, targets: tuple[str, ...], include: tuple[Path, ...]) -> None:
        self.targets, self.include = targets, include
        self.stamps: dict[str, Stamp] = {target: {} for target in targets}

    def changed(self) -> list[str]:
        """Targets of which a file is not as it was when this was last asked; all of them, the first time."""
        now = {target: self._look(target) for target in self.targets}
        found = [target for target in self.targets if now[target] != self.stamps[target]]
        self.stamps = now
        return found

    def _look(self, target: str) -> Stamp:
        path = Path(target)
        try:
            files = [source.path for source in closure(path, self.include)]
        except (OSError, UsageError):  # in the middle of an edit: what it included until now
            files = [path, *self.stamps[target]]
        return {file: _stamp(file) for file in files}

    def folders(self) -> dict[Path, int]:
        """The folders that hold them, links followed and not, with their inodes; one that is gone is left out."""
        files = [file for stamp in self.stamps.values() for file in stamp]
        folders = dict.fromkeys(folder for f in files for folder in (f.absolute().parent, f.resolve().parent))
        return {folder: folder.stat().st_ino for folder in folders if folder.is_dir()}

    def __str__(self) -> str:
        headers = {file for stamp in self.stamps.values() for file in stamp} - {Path(t) for t in self.targets}
        own = [h for h in headers if not any(h.is_relative_to(folder) for folder in self.include)]
        more = f" and {len(own)} header{'s' if len(own) > 1 else ''}" if own else ""
        return ", ".join(self.targets) + more


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class _Check:
    """The check under way, if any."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.flags = flags
        self.targets: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0

    def start(self, targets: list[str]) -> None:
        command = paths.python("-c", CHECK, "check", *self.flags, "--", *targets)
        sys.stdout.flush()
        self.targets, self._began_s = targets, time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=paths.child_environment(), start_new_session=True
        )

    def ended_after_s(self) -> float | None:
        """Seconds that it took, once, when it has ended by itself; None before and after."""
        if self._process is None or self._process.poll() is None:
            return None
        self._process, self.targets = None, []
        return time.monotonic() - self._began_s

    def end(self) -> list[str]:
        """End it with all that it started; returns the targets whose check was cut short."""
        if self._process is None:
            return []
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # compilers that a worker left, or all of it
        self._process.wait()
        self._process, short, self.targets = None, self.targets, []
        return short


def _watch(watched: Watched, check: _Check) -> NoReturn:
    todo: list[str] = []
    for look in _looks(watched):
        if look and (changed := watched.changed()):
            short = check.end()
            if aborted := [t for t in changed if t in short]:
                _say(f"{', '.join(aborted)}: saved during the check, which begins anew")
            gone = [t for t in watched.targets if not Path(t).is_file()]
            for target in (t for t in changed if t in gone):
                _say(f"{target}: is not there; it is checked when it comes back")
            todo = [t for t in watched.targets if t in {*changed, *short} and t not in gone]
            if todo:
                click.clear()  # a terminal alone
                _say(f"checking {', '.join(todo)}")
                check.start(todo)
        if (seconds := check.ended_after_s()) is not None:
            _say(f"took {units.duration(seconds)}; watching {watched}; Ctrl-C ends")
    raise AssertionError("a watch ends by an interrupt")


def _looks(watched: Watched) -> Iterator[bool]:
    """True when a file may have changed, False now and then besides; without an end."""
    from watchfiles import watch

    yield True
    while True:
        folders = watched.folders()
        if not folders:
            time.sleep(LOOK_MS / 1000)
            yield True
            continue
        fresh = True  # what was saved before the watch was set
        try:
            for events in watch(
                *folders,
                watch_filter=None,
                step=SETTLE_MS,
                debounce=4 * SETTLE_MS,
                rust_timeout=LOOK_MS,
                yield_on_timeout=True,
                recursive=False,
            ):
                yield fresh or bool(events)
                fresh = False
                if watched.folders() != folders:
                    break
        except FileNotFoundError:  # a folder that went in this moment
            yield True


def _flags() -> list[str]:
    """The options of this command line without --watch."""
    context, words = click.get_current_context(), list[str]()
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or not isinstance(option, click.Option) or name == "watch":
            continue
        values = context.params[name] if option.multiple else [context.params[name]]
        words += [word for v in values for word in ([option.opts[0]] if v is True else [option.opts[0], str(v)])]
    return words


def _say(words: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {words}", err=True)


def _end(number: int, frame: FrameType | None) -> None:
    """A terminal that closes, or a polite kill, ends the watch as Ctrl-C does."""
    raise KeyboardInterrupt
