"""Assemble PTX to a cubin with ptxas, from NVIDIA's wheel, PATH or a toolkit; this needs no GPU."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opbench import paths
from opbench.errors import CompileError, EnvironmentFault
from opbench.gpu.compile.installed import find_programs
from opbench.paths import MissingExtra

TIME_LIMIT_S = 300.0
"""Time limit of one call of ptxas in seconds."""
OLDEST_ARCHITECTURE_OF_CUDA_13 = 75
"""The oldest architecture for which CUDA 13 assembles, as compute capability times ten; CUDA 12 supports 50."""
_VERSION = re.compile(r"release (\d+)\.(\d+)")
_UNSUPPORTED_PTX_VERSION = re.compile(r"Unsupported \.version [\d.]+; current version is '([\d.]+)'")
_PTX_VERSION = re.compile(r"^\.version\s+[\d.]+", re.MULTILINE)


@dataclass(frozen=True)
class Assembler:
    """A ptxas program and its release, such as (13, 0)."""

    path: Path
    version: tuple[int, int]


def assembler(arch: str) -> Assembler:
    """Return the newest ptxas for an architecture such as "sm_90a"; raise EnvironmentFault if there is none."""
    architecture_number = int(arch.removeprefix("sm_").rstrip("af"))
    usable = [
        assembler
        for assembler in assemblers()
        if architecture_number >= OLDEST_ARCHITECTURE_OF_CUDA_13 or assembler.version < (13, 0)
    ]
    if not usable:
        raise not_installed_error()
    return max(usable, key=lambda assembler: assembler.version)


@functools.cache
def assemblers() -> tuple[Assembler, ...]:
    """Return every ptxas program that is installed on this machine and runs."""
    return tuple(assembler for path in find_programs("ptxas") if (assembler := _probe_assembler(path)))


def not_installed_error() -> MissingExtra:
    """Return the error for a machine without ptxas."""
    return MissingExtra("ptxas is not installed", "ptxas")


def _probe_assembler(path: Path) -> Assembler | None:
    """Return a ptxas program with its release; None if it does not run."""
    try:
        completed = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(completed.stdout)
    return Assembler(path, (int(match[1]), int(match[2]))) if match else None


def assemble(ptx: str, arch: str, name: str) -> Path:
    """Assemble PTX to a cubin, or reuse the cached one; raise CompileError with the assembler's messages.

    If the assembler is older than the PTX, the PTX is assembled with the assembler's own PTX version, because only few
    instructions are new.
    """
    ptxas = assembler(arch)
    digest = hashlib.sha256("\0".join((ptx, arch, str(ptxas.version))).encode()).hexdigest()[:24]
    cubin = paths.cache_folder("cubin") / f"{name}-{arch}-{digest}.ptxas.cubin"
    if cubin.exists():
        return cubin
    errors = _assemble(ptxas, ptx, arch, cubin)
    if errors and (supported_version := _UNSUPPORTED_PTX_VERSION.search(errors)):
        errors = _assemble(ptxas, _PTX_VERSION.sub(f".version {supported_version[1]}", ptx), arch, cubin)
    if errors:
        raise CompileError(f"ptxas {'.'.join(map(str, ptxas.version))}: {errors}", kind="not-assembled", subject=name)
    return cubin


def _assemble(ptxas: Assembler, ptx: str, arch: str, cubin: Path) -> str:
    """Run ptxas to write a cubin; return its first errors, or "" if there are none."""
    with tempfile.TemporaryDirectory(prefix="opbench-ptxas-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [str(ptxas.path), f"-arch={arch}", "--generate-line-info", str(source), "-o", str(target)]
        try:
            completed = subprocess.run(command, capture_output=True, timeout=TIME_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFault(
                f"ptxas at {ptxas.path} cannot be run: {error}; see which ptxas is used with: opbench doctor",
                kind="ptxas-failed",
                subject=ptxas.path,
            ) from None
        if completed.returncode:
            lines = completed.stderr.decode(errors="replace").replace(f"{source}, ", "").strip().splitlines()
            return "; ".join(lines[:3])[:400] or f"exit code {completed.returncode}"
        paths.write_atomically(cubin, target.read_bytes())
    return ""
