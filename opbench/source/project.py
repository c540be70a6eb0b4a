"""Find the include folders of a project, for a file whose build passes `-I` flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opbench.source.sources import include_closure, includes

HEADER_SUFFIXES = frozenset((".h", ".cuh", ".hpp", ".hh", ".hxx", ".inl", ".inc"))
INCLUDE_FOLDERS = ("", "include", "inc", "common", "src", "utils", "src/common", "src/include", "Common")
"""Usual places of headers, relative to the project's folder and to each folder above the file."""
MAX_LEVELS = 6
"""Most folders above a file to search; `MAX_LEVELS_WITHOUT_GIT` if no `.git` marks the project's folder."""
MAX_LEVELS_WITHOUT_GIT = 2
COMPILER_HEADERS = ("cuda", "cooperative_groups", "cub/", "thrust/", "mma.h", "device_launch", "vector_")
"""Prefixes of CUDA's own headers: a project's copy of such a header is for another compiler."""


def project_folders(path: Path, folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return folders of the file's project that contain headers which `folders` lack.

    A project is everything below the nearest `.git` above the file; without one, two folders above the file are
    searched.
    """
    paths: list[Path] = []
    while True:
        for name in _missing_headers(path, (*folders, *paths)):
            containing_folder = next((folder for folder in _candidates(path) if (folder / name).is_file()), None)
            if containing_folder is not None:
                paths.append(containing_folder)
                break
        else:
            return tuple(paths)


def is_compiler_header(name: str) -> bool:
    """Return whether a header belongs to CUDA or the compiler."""
    return name.startswith(COMPILER_HEADERS)


def _missing_headers(path: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Yield the names of included headers that exist in no folder."""
    for source in include_closure(path, folders):
        for _, written in includes(source.text):
            name = written[1:-1]
            own_folder = [source.path.parent] if written[0] == '"' else []
            is_header = Path(name).suffix in HEADER_SUFFIXES and not is_compiler_header(name)
            if is_header and not any((folder / name).is_file() for folder in (*own_folder, *folders)):
                yield name


def _candidates(path: Path) -> Iterator[Path]:
    parent_folders = path.absolute().parents
    project_level = next(
        (level for level, folder in enumerate(parent_folders[:MAX_LEVELS]) if (folder / ".git").exists()),
        MAX_LEVELS_WITHOUT_GIT,
    )
    for folder in parent_folders[: project_level + 1]:
        yield from (folder / subfolder for subfolder in INCLUDE_FOLDERS)
