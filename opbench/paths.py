"""Locations of shipped files, of caches and of run folders, and commands that name files."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path, PurePath

from opbench.errors import EnvironmentFault, writing_remedy

PACKAGE = Path(__file__).parent


def shipped_folder(folder: str) -> Path:
    """Return a folder that ships with opbench (variants, suites, reports): in the wheel, or next to the package."""
    inside = PACKAGE / "shipped" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def shipped_suites() -> list[Path]:
    """Return the files of the suites that ship with opbench, sorted by file name."""
    return sorted(shipped_folder("suites").glob("*.toml"))


def checkout() -> Path | None:
    """Return the source tree that opbench runs from; None if opbench was installed from a wheel."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "variants").is_dir() else None


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of opbench.

    For a checkout it installs from the folder, not the index.
    """
    root = checkout()
    if root is None:
        return f"pip install 'opbench[{extra}]'"
    return f"pip install -e '{'.' if root == Path.cwd() else root}[{extra}]'"


class MissingExtra(EnvironmentFault):
    """A package that an extra of opbench installs is missing; the message ends with the command that installs it."""

    kind = "missing-extra"

    def __init__(self, problem: str, extra: str, otherwise: str = "") -> None:
        super().__init__(f"{problem}; install the missing package with: {pip_install(extra)}{otherwise}", subject=extra)


def portable_path(path: str) -> str:
    """Return a path as results store it: a shipped file relative to opbench's folder, any other path unchanged."""
    root = shipped_folder("variants")
    return f"variants/{path.removeprefix(f'{root}/')}" if path.startswith(f"{root}/") else path


def path_from_here(path: str) -> str:
    """Return a path below the current folder as a relative path, and any other path unchanged."""
    here = f"{Path.cwd()}/"
    return path.removeprefix(here)


def short_path(path: str, columns: int) -> str:
    """Return a path that fits into `columns`: relative, or absolute if that is shorter, or its last parts only.

    The file name is always complete; "…/" stands for the parts that are missing.
    """
    relative = min(path_from_here(path), os.path.relpath(path), key=len)
    if len(relative) <= columns:
        return relative
    *parents, name = PurePath(relative).parts
    kept_parts = [name]
    while parents and len("/".join(["…", parents[-1], *kept_parts])) <= columns:
        kept_parts.insert(0, parents.pop())
    return "/".join(["…", *kept_parts]) if parents else relative


def next_command(text: str, *targets: str | Path, variants: Iterable[str | Path] = (), **options: object) -> str:
    """Return `opbench WORDS TARGETS --variants DIR … --option value …`, quoted for a shell in the current folder.

    `variants` are the extra folders that were searched for the targets. An option that is True becomes a flag; one that
    is empty, None or False is not printed.
    """
    parts = [path_from_here(str(target)) for target in targets]
    for folder in variants:
        parts += ["--variants", path_from_here(str(folder))]
    for name, value in options.items():
        if value is True:
            parts.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False, ""):
            parts += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join([f"opbench {text}", *map(shlex.quote, parts)])


def new_run_folder(name: str) -> Path:
    """Return a path for the folder of a new run, below reports/, whose name begins with the time."""
    return Path("reports") / f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{name}"


def cache_folder(name: str = "") -> Path:
    """Return a writable cache folder: $OPBENCH_CACHE, else ~/.cache/opbench, else the user's own in the temp folder.

    opbench loads code from there. A folder that others may have created or may write to under a predictable name is
    therefore skipped, unless the user names it.
    """
    for root, is_ours in _cache_roots():
        path = (root / name).absolute()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if is_ours(root):
                path.mkdir(parents=True, exist_ok=True)
                if os.access(path, os.W_OK | os.X_OK):
                    return path
        except OSError:
            continue
    path = _temporary_cache() / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _cache_roots() -> list[tuple[Path, Callable[[Path], bool]]]:
    """Return the possible cache folders, best first, each with a function that returns whether to trust it."""
    chosen = os.environ.get("OPBENCH_CACHE")
    if chosen:
        return [(Path(chosen), lambda path: True)]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opbench"
    return [(home, _is_owned), (Path(tempfile.gettempdir()) / f"opbench-{os.getuid()}", _is_private)]


def _is_owned(folder: Path) -> bool:
    """Return whether a folder belongs to the user or to root."""
    return folder.lstat().st_uid in (os.getuid(), 0)


def _is_private(folder: Path) -> bool:
    """Return whether no other user created the folder, can write into it or redirected it."""
    mode = folder.lstat().st_mode
    return stat.S_ISDIR(mode) and not mode & (stat.S_IWGRP | stat.S_IWOTH) and _is_owned(folder)


@functools.cache
def _temporary_cache() -> Path:
    return Path(tempfile.mkdtemp(prefix="opbench-"))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part, even after a crash."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        move_into_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def write_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn a refusal of the system to write `path` into an EnvironmentFault whose message ends with `remedy`."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: this file cannot be written: {error.strerror or error}; {writing_remedy(error)}{remedy}",
            kind="unwritable",
            subject=path,
            value=error.errno,
        ) from None


def write_file(path: Path, content: bytes, remedy: str, *, parents: bool = False) -> None:
    """Write a file atomically, after its parent folders if `parents` is set.

    Raises EnvironmentFault, with `remedy` as its end, if the system refuses.
    """
    with write_errors(path, remedy):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def move_into_place(temporary_path: Path, final_path: Path) -> None:
    """Move a complete file to its final path on the same file system in one step, and sync the file and its name to
    disk.
    """
    _fsync(temporary_path, os.O_RDONLY)
    temporary_path.replace(final_path)
    _fsync(final_path.parent, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
