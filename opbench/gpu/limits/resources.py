"""What a launched kernel takes of a GPU, and what its machine code consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from opbench.kernels.launch import Dim3


@dataclass(frozen=True)
class MachineCode:
    """Static counts of one kernel's instructions: how often each stands in the code, not how often it runs."""

    total: int
    classes: dict[str, int] = field(default_factory=dict)
    accesses: dict[str, int] = field(default_factory=dict)
    """Instructions that touch memory by class and bits a thread: "LDG.128"."""
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    """The same by line of the source."""
    sunk: dict[str, int] = field(default_factory=dict)
    """Lines all of whose loads come right behind the branch of one later line, which is their condition."""
    sha256: str = ""
    """Of the instructions and constants, whatever the file, the kernel and the labels are called."""


@dataclass(frozen=True)
class LaunchResources:
    """What one kernel takes as it is launched; None, or empty, where that is not known."""

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
    """Which compiler a run without a GPU has these from."""
    code_bytes: int | None = None
    spill_bytes: int | None = None
    """Of local memory, what holds spilled registers."""
    sass: MachineCode | None = None
