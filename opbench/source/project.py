"""Folders of a project in which its headers lie, for a file that names them as its build does: by `-I` flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opbench.source.sources import closure, includes

HEADERS = frozenset((".h", ".cuh", ".hpp", ".hh", ".hxx", ".inl", ".inc"))
PLACES = ("", "include", "inc", "common", "src", "utils", "src/common", "src/include", "Common")
"""Where projects keep headers, in their own folder and in each above the file."""
LEVELS = 6
"""Folders above a file that may be its project's; where nothing marks the project's own, fewer are looked into."""
UNMARKED_LEVELS = 2
COMPILERS_OWN = ("cuda", "cooperative_groups", "cub/", "thrust/", "mma.h", "device_launch", "vector_")
"""Beginnings of names that are CUDA's: a project's copy of such a header is for another compiler."""


def project_folders(path: Path, folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The folders of the file's project that have headers of its closure which neither it nor `folders` has.

    A project is what lies below the nearest `.git` above the file; without one, the two folders above it.
    """
    found: list[Path] = []
    while True:
        for name in _missing(path, (*folders, *found)):
            holder = next((folder for folder in _candidates(path) if (folder / name).is_file()), None)
            if holder is not None:
                found.append(holder)
                break
        else:
            return tuple(found)


def is_compilers(name: str) -> bool:
    """Whether a header is CUDA's own."""
    return name.startswith(COMPILERS_OWN)


def _missing(path: Path, folders: Sequence[Path]) -> Iterator[str]:
    """The names of headers that a closure includes and that are nowhere."""
    for source in closure(path, folders):
        for _, written in includes(source.text):
            name = written[1:-1]
            near = [source.path.parent] if written[0] == '"' else []
            is_header = Path(name).suffix in HEADERS and not is_compilers(name)
            if is_header and not any((folder / name).is_file() for folder in (*near, *folders)):
                yield name


def _candidates(path: Path) -> Iterator[Path]:
    above = path.absolute().parents
    marked = next((level for level, folder in enumerate(above[:LEVELS]) if (folder / ".git").exists()), UNMARKED_LEVELS)
    for folder in above[: marked + 1]:
        yield from (folder / place for place in PLACES)
