"""What must be compiled and launched for a case, with every number known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel of a case with every number known; a `zero` step clears a buffer instead."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[str | int | float, ...]
    """Buffer names (str), C `int`s (int) and C `float`s (float), in the kernel's order."""
    zero: str = ""
    """Name of a buffer to fill with zero bytes; then every other field is empty."""


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides a compiled module, hence the key of its cache."""

    source: Path
    kernels: tuple[str, ...]
    macros: tuple[tuple[str, str], ...] = ()
    compute_capability: str = ""
    """The least capability the variant needs ("8.0", "9.0a"); empty means any."""
    include: tuple[Path, ...] = ()
    """Folders that its headers are searched in, in this order."""
