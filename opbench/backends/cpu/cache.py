"""The folder of compiled files: complete files only, whatever dies in between."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder(chosen: Path | None) -> Path:
    """The chosen folder, $OPBENCH_CACHE or ~/.cache/opbench; a temporary one where that is not writable."""
    named = chosen or os.environ.get("OPBENCH_CACHE")
    folder = Path(named) if named else Path("~/.cache/opbench").expanduser()
    for candidate in (folder, Path(tempfile.gettempdir()) / f"opbench-{os.getuid()}"):
        if _is_writable(candidate):
            return candidate.absolute()
    return Path(tempfile.mkdtemp(prefix="opbench-"))


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    # A folder of someone else under a guessable name would let them choose the code that runs here.
    owned = folder.stat().st_uid in (os.getuid(), 0)
    return owned and os.access(folder, os.W_OK | os.X_OK)


def digest(*parts: str | bytes) -> str:
    """A key of the parts, which no concatenation of other parts shares."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:20]


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A working folder beside the cache's files, on the same file system so that a rename is atomic."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name)


def publish(made: Path, final: Path) -> Path:
    """Move a complete file to its place in one step."""
    return made.replace(final)


def write_atomically(final: Path, text: str) -> None:
    """Write a small file so that nobody ever reads half of it."""
    with scratch(final.parent) as folder:
        made = folder / final.name
        made.write_text(text)
        publish(made, final)
