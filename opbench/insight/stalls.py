"""The reasons why warps wait: each with its meaning, and with the mechanisms that shorten the wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opbench.kernels.mechanism import (
    BANK_CONFLICT_FREE,
    BLOCK_REDUCTION,
    COALESCED,
    CONVERTED_AHEAD,
    FEWER_BARRIERS,
    REGISTER_TILE,
    SHARED_MEMORY_TILE,
    UNIFORM_WARPS,
    VECTORISED_ACCESS,
)


@dataclass(frozen=True)
class Stall:
    """One reason for which a warp issues no instruction at a sampled moment."""

    name: str
    """The name in Nsight Compute's metrics, such as "short_scoreboard"."""
    column: str
    """The column of Nsight Compute's source page, such as "stall_short_sb"."""
    meaning: str
    """The cause of the wait, as a sentence."""
    remedy: str
    """The change in the kernel that shortens the wait, as a sentence."""
    mechanisms: tuple[str, ...] = ()
    """Keys of `opbench.kernels.mechanism.MECHANISMS` that usually shorten the wait, the most effective first."""
    works: bool = False
    """Whether the warp issued or could issue an instruction, so that the sample is no wait."""

    @property
    def title(self) -> str:
        """Return the name in words, such as "short scoreboard"."""
        return self.name.replace("_", " ")


STALLS: Mapping[str, Stall] = {
    stall.name: stall
    for stall in (
        Stall(
            "long_scoreboard",
            "stall_long_sb",
            "The warp waits for a load from global, local or texture memory.",
            "Keep more loads in flight (unroll, load the next tile early, or use more warps), and load fewer bytes.",
            ("double_buffer", "async_copy", "unrolled", COALESCED, SHARED_MEMORY_TILE),
        ),
        Stall(
            "short_scoreboard",
            "stall_short_sb",
            "The warp waits for shared memory, a shuffle, a special function (MUFU) or a conversion of types.",
            "Remove bank conflicts and load wider from shared memory; move divisions and conversions out of the loop.",
            (BANK_CONFLICT_FREE, REGISTER_TILE, "no_division"),
        ),
        Stall(
            "mio_throttle",
            "stall_mio",
            "The queue of shared memory, shuffles and special functions is full.",
            "Use fewer and wider shared loads (16 bytes per thread), and keep values in registers.",
            (VECTORISED_ACCESS, REGISTER_TILE, BANK_CONFLICT_FREE),
        ),
        Stall(
            "lg_throttle",
            "stall_lg",
            "The queue of the load-store unit for global and local memory is full.",
            "Use fewer and wider loads, such as float4; remove register spills.",
            (VECTORISED_ACCESS, REGISTER_TILE, SHARED_MEMORY_TILE),
        ),
        Stall(
            "tex_throttle",
            "stall_tex",
            "The queue of the texture unit is full.",
            "Use fewer texture instructions, or load some of the data as global memory.",
            (SHARED_MEMORY_TILE,),
        ),
        Stall(
            "barrier",
            "stall_barrier",
            "The warp waits at a barrier for the other warps of its block.",
            "Give the warps equal work, use smaller blocks, or synchronise warps instead of blocks.",
            (FEWER_BARRIERS, "warp_shuffle", "double_buffer"),
        ),
        Stall(
            "membar",
            "stall_membar",
            "The warp waits at a memory fence until its earlier accesses are visible.",
            "Use fewer fences, and fences of a smaller scope, such as __threadfence_block().",
            (BLOCK_REDUCTION,),
        ),
        Stall(
            "wait",
            "stall_wait",
            "The warp waits for a fixed number of cycles until the previous instruction has its result.",
            "Compute several independent results per thread, or use more warps; a small share is normal.",
            ("unrolled", REGISTER_TILE),
        ),
        Stall(
            "math_pipe_throttle",
            "stall_math",
            "The arithmetic unit that the instruction needs is busy.",
            "Use fewer operations or another unit, such as tensor cores: this unit is at its limit.",
            ("tensor_core", "fewer_operations"),
        ),
        Stall(
            "gmma",
            "stall_gmma",
            "The warp waits for matrix products of its warpgroup (wgmma).",
            "Keep a second product in flight, or let another warpgroup compute at the same time.",
            ("warp_specialised", "double_buffer"),
        ),
        Stall(
            "warpgroup_arrive",
            "stall_warpgroup_arrive",
            "The warp waits until all warps of its warpgroup have arrived for a matrix product.",
            "Give the four warps of the warpgroup equal work before the product.",
            (UNIFORM_WARPS,),
        ),
        Stall(
            "branch_resolving",
            "stall_branch_resolving",
            "The warp waits until the target of a branch is known.",
            "Branch less often: unroll short loops and replace small branches by selections.",
            ("unrolled", "compile_time_sizes", UNIFORM_WARPS),
        ),
        Stall(
            "no_instructions",
            "stall_no_inst",
            "The next instruction is not in the instruction cache.",
            "Make the hot code smaller: unroll less, and avoid jumps to far code.",
        ),
        Stall(
            "imc_miss",
            "stall_imc",
            "The warp waits for a constant that is not in the constant cache.",
            "Read constants with one address per warp, or pass sizes as compile-time constants.",
            ("compile_time_sizes",),
        ),
        Stall(
            "drain",
            "stall_drain",
            "The warp has ended and waits until its stores have left.",
            "Store contiguous bytes, wide, and not only at the end of the kernel.",
            ("coalesced_stores", VECTORISED_ACCESS),
        ),
        Stall(
            "dispatch",
            "stall_dispatch",
            "The dispatcher holds the instruction back, mostly because of conflicts in the register file.",
            "Usually change nothing in the source: a large share is rare.",
        ),
        Stall(
            "sleeping",
            "stall_sleep",
            "All threads of the warp sleep or have yielded.",
            "Poll less with __nanosleep, or wait at an mbarrier.",
        ),
        Stall(
            "misc",
            "stall_misc",
            "The warp waits for a reason that the hardware does not name.",
            "Look at the instruction in the machine code: opbench profile CASE --source.",
        ),
        Stall(
            "not_selected",
            "stall_not_selected",
            "The warp could issue, but the scheduler chose another warp.",
            "Change nothing: there are more than enough warps.",
            works=True,
        ),
        Stall(
            "selected",
            "stall_selected",
            "The warp issued its instruction.",
            "Change nothing: the warp works and does not wait. Only fewer instructions make it faster.",
            ("fewer_operations",),
            works=True,
        ),
    )
}
"""Stalls by name; the meanings follow the warp states in NVIDIA's Kernel Profiling Guide."""

_SPELLINGS = {
    "no_instruction": "no_instructions",
    "dispatch_stall": "dispatch",
    "branch_resolve": "branch_resolving",
    "tex": "tex_throttle",
}
"""Other spellings of a reason, in releases of Nsight Compute and in stored counters."""


def issues_or_could_issue(reason: str) -> bool:
    """Return whether the reason with this name counts warps that issue, or could issue, and so do not wait."""
    return reason in STALLS and STALLS[reason].works


def find_stall(name: str) -> Stall | None:
    """Return a stall by its name, its title, its metric or its column; None if no stall has that name.

    "Stall Short Scoreboard", "stall_short_sb" and "smsp__pcsamp_warps_issue_stalled_short_scoreboard" name the same
    stall.
    """
    name_key = name.strip().lower().replace(" ", "_").replace("-", "_")
    name_key = name_key.rpartition("issue_stalled_")[2].removesuffix("_not_issued")
    name_key = name_key.removeprefix("stall_")
    name_key = _SPELLINGS.get(name_key, name_key)
    return STALLS.get(name_key) or next(
        (stall for stall in STALLS.values() if stall.column.removeprefix("stall_") == name_key), None
    )


PRODUCTS = "matrix products"
LONG_SCOREBOARD, SHORT_SCOREBOARD = "long_scoreboard", "short_scoreboard"


@dataclass(frozen=True)
class Cause:
    """A class of instructions that warps wait for, which decides the remedy of a scoreboard wait."""

    name: str
    """The name in reports, such as "shared memory"."""
    reasons: tuple[str, ...]
    """The reasons that usually name such a wait."""
    opcodes: frozenset[str]
    mechanisms: tuple[str, ...] = ()


CAUSES = tuple(
    Cause(name, reasons, frozenset(opcodes.split()), mechanisms)
    for name, reasons, opcodes, mechanisms in (
        ("global memory", (LONG_SCOREBOARD,), "LDG LD LDGSTS STG ST", STALLS[LONG_SCOREBOARD].mechanisms),
        (
            "shared memory",
            (SHORT_SCOREBOARD,),
            "LDS LDSM STS STSM ATOMS",
            (BANK_CONFLICT_FREE, REGISTER_TILE, VECTORISED_ACCESS),
        ),
        ("special functions", (SHORT_SCOREBOARD,), "MUFU", ("no_division", "fewer_operations")),
        ("conversions of types", (SHORT_SCOREBOARD,), "F2I I2F F2F I2I FRND", ("no_division", CONVERTED_AHEAD)),
        ("shuffles", (SHORT_SCOREBOARD,), "SHFL VOTE MATCH REDUX CREDUX", (REGISTER_TILE, "fewer_operations")),
        ("mbarriers", (LONG_SCOREBOARD, SHORT_SCOREBOARD), "SYNCS", ("double_buffer", "warp_specialised")),
        ("atomics", (LONG_SCOREBOARD,), "ATOM ATOMG RED REDG", (BLOCK_REDUCTION,)),
        ("local memory", (LONG_SCOREBOARD,), "LDL STL", ("compile_time_sizes",)),
        ("constants", (SHORT_SCOREBOARD,), "LDC LDCU ULDC", ("compile_time_sizes",)),
        ("bit counting", (SHORT_SCOREBOARD,), "POPC FLO BREV UPOPC UFLO UBREV", ("fewer_operations",)),
        ("special registers", (SHORT_SCOREBOARD,), "S2R S2UR B2R", ()),
        (PRODUCTS, (LONG_SCOREBOARD,), "HGMMA IGMMA QGMMA BGMMA", STALLS["gmma"].mechanisms),
        ("texture memory", (LONG_SCOREBOARD,), "TEX TLD TLD4 SULD", (SHARED_MEMORY_TILE,)),
    )
)


def find_cause(opcode: str) -> Cause | None:
    """Return the class of an opcode without modifiers, such as "LDS"; None for an instruction of fixed latency."""
    return next((cause for cause in CAUSES if opcode in cause.opcodes), None)


def mechanisms_of(reason: str, opcode: str = "") -> tuple[str, ...]:
    """Return the mechanisms that shorten waits of a reason, the most effective first.

    For scoreboard waits they depend on the opcode that warps wait for.
    """
    cause = find_cause(opcode)
    if cause is not None and (reason in (LONG_SCOREBOARD, SHORT_SCOREBOARD) or cause.name == PRODUCTS):
        return cause.mechanisms
    return STALLS[reason].mechanisms if reason in STALLS else ()
