"""Write the shipped files as a folder, completely or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from opbench import paths
from opbench.errors import EnvironmentFault, UsageError, writing_remedy

MANIFEST = "ship.json"
"""The file that marks a folder as written by `opbench ship`, and says what it contains."""


def require_free(out: Path, replace: bool) -> None:
    """Raise UsageError for an existing folder, unless `opbench ship` wrote it and it is to be replaced."""
    if not out.exists() and not out.is_symlink():
        return
    if not replace:
        raise UsageError(
            f"--out {out}: this folder already exists; choose another folder, or replace this one with --replace",
            kind="folder-exists",
            subject=out,
            allowed="--replace",
        )
    if not (out / MANIFEST).is_file():
        raise UsageError(
            f"--out {out}: opbench ship did not write this folder (it has no {MANIFEST}), so --replace does not delete "
            "it; name another folder: --out DIR",
            kind="not-our-folder",
            subject=out,
        )


def write_folder(out: Path, files: Mapping[str, bytes], manifest: Mapping[str, object], replace: bool) -> None:
    """Write all files, or none; raises EnvironmentFault if the system refuses."""
    require_free(out, replace)
    manifest_text = json.dumps({"ship": 1, **manifest, "files": sorted(files)}, indent=1).encode() + b"\n"
    path: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        for name, content in {**files, MANIFEST: manifest_text}.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            paths.write_atomically(path / name, content)
        path.chmod(0o755)
        if out.exists():
            old_folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old."))
            out.replace(old_folder / out.name)
            path.replace(out)
            shutil.rmtree(old_folder, ignore_errors=True)
        else:
            path.replace(out)
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentFault(
            f"{out}: this folder cannot be written: {reason}; {writing_remedy(error)}name another folder: --out DIR",
            kind="unwritable",
            subject=out,
            value=error.errno,
        ) from None
    finally:
        if path is not None and path.exists():
            shutil.rmtree(path, ignore_errors=True)
