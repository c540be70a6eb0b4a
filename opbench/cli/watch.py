"""Check files again on each save, for `opbench check --watch`.

Each check is a process in its own process group, so that a save during the check, or Ctrl-C, ends it with all workers
and compilers, and a source that does not compile ends only the check, not the watch. The status of the files shows
whether they changed; the system's events only trigger this test. So editors that replace a file by renaming, and files
that disappear and return, are handled like files that are written.
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

from opbench import units
from opbench.child_process import child_environment, python
from opbench.errors import UsageError
from opbench.kernels.folders import Catalog
from opbench.running.targets import is_file
from opbench.source.sources import include_closure

POLL_MS = 250
"""Interval for testing whether the check has ended; a save is noticed at once."""
SETTLE_MS = 50
"""Time without events after which a save is complete: editors write a file in several steps."""
STOP_TIMEOUT_S = 2.0
"""Time for a check to end its workers before it is killed."""
EXIT_INTERRUPTED = 130

CHECK_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # no traceback before main
    "from opbench.cli import main; signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)

FileStamps = dict[Path, tuple[int, int, int] | None]
"""Files with inode, size in bytes and time of the last write in ns; None for a missing file."""


def watch_targets(targets: Sequence[str], roots: Sequence[Path]) -> NoReturn:
    """Check files now and again on each save, until an interrupt; exit with code 130.

    `roots` are extra folders of variants. Raises UsageError for a target that is not the user's own file.
    """
    if not targets:
        raise UsageError(
            "--watch needs files to watch; name them, for example: opbench check FILE.cu --watch",
            kind="missing-argument",
            subject="--watch",
        )
    for target in targets:
        if not is_file(target):
            raise UsageError(
                f"--watch: '{target}' is not a .cu file; check operators and variants without --watch",
                kind="not-a-kernel-file",
            )
        if not Path(target).is_file():
            raise UsageError(
                f"--watch: the file {target} does not exist; create one with: opbench new variant OPERATOR/NAME",
                kind="no-such-file",
            )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_interrupt)
    watched = WatchedFiles(tuple(dict.fromkeys(targets)), tuple(Catalog(roots).include))
    check = _CheckProcess(_command_flags())
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _watch(watched, check)
        finally:
            check.end()
    click.get_current_context().exit(EXIT_INTERRUPTED)


class WatchedFiles:
    """The watched files and everything they include, with their last known status."""

    def __init__(self, targets: tuple[str, ...], include: tuple[Path, ...]) -> None:
        self.targets, self.include = targets, include
        self.stamps: dict[str, FileStamps] = {target: {} for target in targets}

    def changed(self) -> list[str]:
        """Return the targets with a file that changed since the last call; all targets on the first call."""
        stamps = {target: self._scan_files(target) for target in self.targets}
        changed_targets = [target for target in self.targets if stamps[target] != self.stamps[target]]
        self.stamps = stamps
        return changed_targets

    def _scan_files(self, target: str) -> FileStamps:
        """Return the status of a target and of all files that it includes."""
        path = Path(target)
        try:
            files = [source.path for source in include_closure(path, self.include)]
        except (OSError, UsageError):  # The file is incomplete during an edit, so the previous includes are used.
            files = [path, *self.stamps[target]]
        return {file: _file_stamp(file) for file in files}

    def folders(self) -> dict[Path, int]:
        """Return the folders of all files, with and without links resolved, with inodes; missing ones are omitted."""
        files = [file for stamp in self.stamps.values() for file in stamp]
        folders = dict.fromkeys(folder for f in files for folder in (f.absolute().parent, f.resolve().parent))
        return {folder: folder.stat().st_ino for folder in folders if folder.is_dir()}

    def __str__(self) -> str:
        headers = {file for stamp in self.stamps.values() for file in stamp} - {Path(t) for t in self.targets}
        own_headers = [h for h in headers if not any(h.is_relative_to(folder) for folder in self.include)]
        header_text = f" and {units.count_noun(len(own_headers), 'header')}" if own_headers else ""
        return ", ".join(self.targets) + header_text


def _file_stamp(file: Path) -> tuple[int, int, int] | None:
    """Return inode, size in bytes and time of the last write in ns; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class _CheckProcess:
    """The process of the running check; none between checks."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.flags = flags
        self.targets: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0

    def start(self, targets: list[str]) -> None:
        command = python("-c", CHECK_PROGRAM, "check", *self.flags, "--", *targets)
        sys.stdout.flush()
        self.targets, self._began_s = targets, time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=child_environment(), start_new_session=True
        )

    def ended_after_s(self) -> float | None:
        """Return, once, the duration in seconds of a check that ended by itself; None at all other times."""
        if self._process is None or self._process.poll() is None:
            return None
        self._process, self.targets = None, []
        return time.monotonic() - self._began_s

    def end(self) -> list[str]:
        """End the check with all its processes; return the targets whose check was interrupted."""
        if self._process is None:
            return []
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # Kill compilers that remain, or the whole check.
        self._process.wait()
        self._process, interrupted_targets, self.targets = None, self.targets, []
        return interrupted_targets


def _watch(watched: WatchedFiles, check: _CheckProcess) -> NoReturn:
    """Start a check after each change of the files, and print when it ends; never returns."""
    targets_to_check: list[str] = []
    for may_have_changed in _poll_changes(watched):
        if may_have_changed and (changed := watched.changed()):
            interrupted_targets = check.end()
            if aborted := [t for t in changed if t in interrupted_targets]:
                _print_with_time(f"{', '.join(aborted)}: saved during the check; the check starts again")
            missing_targets = [t for t in watched.targets if not Path(t).is_file()]
            for target in (t for t in changed if t in missing_targets):
                _print_with_time(f"{target}: does not exist now; it is checked when it exists again")
            targets_to_check = [
                t for t in watched.targets if t in {*changed, *interrupted_targets} and t not in missing_targets
            ]
            if targets_to_check:
                click.clear()  # This does nothing unless stdout is a terminal.
                _print_with_time(f"checking {', '.join(targets_to_check)}")
                check.start(targets_to_check)
        if (seconds := check.ended_after_s()) is not None:
            _print_with_time(f"took {units.duration(seconds)}; watching {watched}; Ctrl-C ends")
    raise AssertionError("a watch ends by an interrupt")


def _poll_changes(watched: WatchedFiles) -> Iterator[bool]:
    """Yield True when a file may have changed, and False at intervals; never ends."""
    from watchfiles import watch

    yield True
    while True:
        folders = watched.folders()
        if not folders:
            time.sleep(POLL_MS / 1000)
            yield True
            continue
        is_first = True  # A file may have been saved before the watch started.
        try:
            for events in watch(
                *folders,
                watch_filter=None,
                step=SETTLE_MS,
                debounce=4 * SETTLE_MS,
                rust_timeout=POLL_MS,
                yield_on_timeout=True,
                recursive=False,
            ):
                yield is_first or bool(events)
                is_first = False
                if watched.folders() != folders:
                    break
        except FileNotFoundError:  # A folder was removed in between.
            yield True


def _command_flags() -> list[str]:
    """Return the options of this command line without --watch."""
    context, flags = click.get_current_context(), list[str]()
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not is_given or not isinstance(option, click.Option) or name == "watch":
            continue
        values = context.params[name] if option.multiple else [context.params[name]]
        flags += [word for v in values for word in ([option.opts[0]] if v is True else [option.opts[0], str(v)])]
    return flags


def _print_with_time(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C."""
    raise KeyboardInterrupt
