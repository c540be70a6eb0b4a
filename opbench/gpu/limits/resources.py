"""Resources of a launched kernel, and counts of its machine code."""

from __future__ import annotations

from dataclasses import dataclass, field

from opbench.kernels.launch import Dim3

OUTSIDE_KERNEL = -1
"""The index of a block that stands for the end of a thread and for unknown targets."""


@dataclass(frozen=True)
class BasicBlock:
    """A basic block: instructions that a warp executes one after the other without a jump between them."""

    classes: dict[str, int] = field(default_factory=dict)
    """Instructions by class, such as "FFMA"; an instruction whose predicate is false counts, too."""
    accesses: dict[str, dict[str, int]] = field(default_factory=dict)
    """Memory instructions without a predicate, by source line and by class and bits per thread."""
    conditional: dict[str, dict[str, int]] = field(default_factory=dict)
    """Memory instructions with a predicate, by source line and by class and bits per thread."""
    product_flops: dict[str, int] = field(default_factory=dict)
    """FLOPs of tensor-core instructions of one warp, by precision: tf32, bf16."""
    before: tuple[int, ...] = ()
    """Indices of the blocks that can execute directly before this one."""
    after: tuple[int, ...] = ()
    """Indices of the blocks that can follow directly; `OUTSIDE_KERNEL` for the thread's end and unknown targets."""
    in_loop: bool = False


@dataclass(frozen=True)
class MachineCode:
    """Counts of the instructions in the code of one kernel; a loop's body counts once."""

    total: int
    classes: dict[str, int] = field(default_factory=dict)
    accesses: dict[str, int] = field(default_factory=dict)
    """Memory instructions by class and bits per thread, such as "LDG.128"."""
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    """The memory instructions of each source line."""
    sunk: dict[str, int] = field(default_factory=dict)
    """For each source line whose loads the compiler sank below a branch, the later line of that branch."""
    sha256: str = ""
    """Hash of instructions and constants; the names of file, kernel and labels do not change it."""
    blocks: tuple[BasicBlock, ...] = ()
    """The basic blocks in the order of the code; empty unless requested, because results do not store them."""


@dataclass(frozen=True)
class LaunchResources:
    """Resources and occupancy of one launched kernel; None or empty for unknown values."""

    registers: int
    shared_bytes: int
    """Static shared memory of a block in bytes."""
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
    """Bytes of local memory for spilled registers."""
    sass: MachineCode | None = None
