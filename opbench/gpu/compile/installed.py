"""Find NVIDIA's programs and folders on this machine: in wheels, on PATH, in CUDA toolkits."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def wheel_roots() -> list[Path]:
    """Return the folders of the `nvidia` namespace package, where NVIDIA's wheels install their files."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def toolkits() -> list[Path]:
    """Return the CUDA toolkits named by environment variables or at the installer's default path."""
    folders = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return [Path(folder) for folder in folders if folder]


def find_programs(name: str, wheel_pattern: str = "") -> list[Path]:
    """Return the executable files of a program: those in wheels, the newest first, then on PATH, then in toolkits.

    `wheel_pattern` is the place of the program below the folder `nvidia`, by default "*/bin/NAME".
    """
    pattern, on_path = wheel_pattern or f"*/bin/{name}", shutil.which(name)
    candidates = (
        *(path for root in wheel_roots() for path in sorted(root.glob(pattern), reverse=True)),
        *([Path(on_path)] if on_path else []),
        *(toolkit / "bin" / name for toolkit in toolkits()),
    )
    return [path for path in dict.fromkeys(candidates) if path.is_file() and os.access(path, os.X_OK)]


def compute_sanitizer() -> Path | None:
    """Return the path of compute-sanitizer; None if it is not installed."""
    # Wheels before CUDA 13.4 have the program in another folder and lack its launcher.
    return next(iter(find_programs("compute-sanitizer", "cu*/compute-sanitizer/compute-sanitizer")), None)
