"""Resources of a launched kernel, and counts of its machine code."""

from __future__ import annotations

from dataclasses import dataclass, field

from opbench.kernels.launch import Dim3


@dataclass(frozen=True)
class MachineCode:
    """Static counts of one kernel's instructions in the code; loops do not multiply them."""

    total: int
    classes: dict[str, int] = field(default_factory=dict)
    accesses: dict[str, int] = field(default_factory=dict)
    """Memory instructions by class and bits per thread, such as "LDG.128"."""
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    """The memory instructions of each source line."""
    sunk: dict[str, int] = field(default_factory=dict)
    """Source line -> the later line whose branch guards all loads of the first: the compiler sank them there."""
    sha256: str = ""
    """Hash of instructions and constants; the names of file, kernel and labels do not change it."""


@dataclass(frozen=True)
class LaunchResources:
    """Resources and occupancy of one launched kernel; None or empty for what is not known."""

    registers: int
    shared_bytes: int
    """Static."""
    local_bytes: int
    max_threads: int | None = None
    grid: Dim3 | None = None
    block: Dim3 | None = None
    dynamic_shared_bytes: int | None = None
    blocks_per_sm: int | None = None
    warps_per_sm: int | None = None
    occupancy: float | None = None
    limiter: str = ""
    blocks_by: dict[str, int] = field(default_factory=dict)
    waves: float | None = None
    tail: float | None = None
    source: str = ""
    """The compiler that reported these values, in a run without a GPU."""
    code_bytes: int | None = None
    spill_bytes: int | None = None
    """Local memory of spilled registers."""
    sass: MachineCode | None = None
