"""Where things lie: what ships with opbench, and what is kept between runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(folder: str) -> Path:
    """A folder that travels with opbench (variants, suites, reports): inside the wheel, else beside the package."""
    inside = PACKAGE / "shipped" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def checkout() -> Path | None:
    """The source tree that opbench runs from; None where it was installed from a wheel."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "variants").is_dir() else None


def portable(path: str) -> str:
    """A path as results name it: within what ships with opbench the same on every machine, else as it is."""
    root = shipped("variants")
    return f"variants/{path.removeprefix(f'{root}/')}" if path.startswith(f"{root}/") else path


def from_here(path: str) -> str:
    """A path as a compiler would print it: from here, where it lies below."""
    here = f"{Path.cwd()}/"
    return path.removeprefix(here)


def cache_folder(name: str) -> Path:
    """A writable folder of the cache: $OPBENCH_CACHE, else ~/.cache/opbench, else this user's in the temp folder."""
    for root in _roots():
        path = root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            if os.access(path, os.W_OK):
                return path
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="opbench-"))


def _roots() -> list[Path]:
    chosen = os.environ.get("OPBENCH_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opbench"
    return [Path(chosen)] if chosen else [home, Path(tempfile.gettempdir()) / f"opbench-{os.getuid()}"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise
