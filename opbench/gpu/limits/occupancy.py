"""Theoretical occupancy: how many blocks fit on a multiprocessor, and which resource limits them."""

from __future__ import annotations

from dataclasses import dataclass

from opbench.kernels.expression import cdiv

WARP_THREADS = 32
REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of this number."""
REGISTER_PARTITIONS = 4
"""A multiprocessor has four partitions of registers, and a warp uses one of them."""
SHARED_UNIT = 128
"""Shared memory is allocated in multiples of this number of bytes."""
KIB = 1024
SHARED_SIZES_KIB = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)
"""Sizes of shared memory in KiB that the driver can configure; the other memory is L1 cache."""


@dataclass(frozen=True)
class DeviceLimits:
    """The resources of one multiprocessor and the limits for one block."""

    name: str
    sm_count: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    shared_per_sm: int
    """Shared memory of a multiprocessor in bytes."""
    shared_per_block: int
    """The greatest static and dynamic shared memory of a block in bytes, with the opt-in for more than 48 KiB."""
    reserved_shared_per_block: int = 1024
    """Bytes of shared memory that the driver reserves in each block."""
    threads_per_block: int = 1024
    l1_bytes: int = 0
    """L1 cache and shared memory of a multiprocessor together, in bytes; 0 if unknown."""
    l2_bytes: int = 0
    """Size of the L2 cache in bytes; 0 if unknown."""

    def resident_blocks(self, shared_bytes: int, threads: int) -> int:
        """Return how many blocks fit on a multiprocessor if registers do not limit them."""
        return occupancy(self, 1, shared_bytes, threads, 1).blocks_per_sm

    def l1_size(self, shared_bytes: int, resident_blocks: int) -> int:
        """Return the bytes of L1 cache on a multiprocessor with `resident_blocks` blocks of this shared memory."""
        shared_needed = resident_blocks * (shared_bytes + self.reserved_shared_per_block) if shared_bytes else 0
        sizes = [size * KIB for size in SHARED_SIZES_KIB if size * KIB <= self.shared_per_sm]
        return self.l1_bytes - next((size for size in sizes if size >= shared_needed), self.shared_per_sm)


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of one launch, and the resource that limits it."""

    blocks_per_sm: int
    warps_per_sm: int
    occupancy: float
    """Resident warps divided by the maximum of a multiprocessor."""
    limiter: str
    """The limiting resource: registers, shared memory, warps or blocks; joined by ' and ' on a tie."""
    blocks_by: dict[str, int]
    """Blocks per multiprocessor that each resource alone would allow."""
    waves: float
    """Blocks of the grid divided by the blocks that are resident at the same time on the whole GPU."""
    tail: float
    """Share of the time in the last, partly filled wave, if all blocks take equally long."""


def occupancy(limits: DeviceLimits, registers: int, shared_bytes: int, threads: int, blocks: int) -> Occupancy:
    """Return the occupancy of `blocks` blocks of `threads` threads; `shared_bytes` is static plus dynamic.

    The rules are those of NVIDIA's occupancy calculator for compute capability 7.0 and newer.
    """
    warps = cdiv(threads, WARP_THREADS)
    max_warps = limits.threads_per_sm // WARP_THREADS
    blocks_by_limit = {
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared memory": _blocks_by_shared(limits, shared_bytes),
        "warps": max_warps // warps,
        "blocks": limits.blocks_per_sm,
    }
    resident_blocks = min(blocks_by_limit.values())
    waves = blocks / (resident_blocks * limits.sm_count) if resident_blocks else 0.0
    full_waves = int(waves)
    return Occupancy(
        blocks_per_sm=resident_blocks,
        warps_per_sm=resident_blocks * warps,
        occupancy=resident_blocks * warps / max_warps,
        limiter=" and ".join(name for name, block_count in blocks_by_limit.items() if block_count == resident_blocks),
        blocks_by=blocks_by_limit,
        waves=waves,
        tail=1 / (full_waves + 1) if waves > full_waves else 0.0,
    )


def _blocks_by_registers(limits: DeviceLimits, warps: int, registers: int) -> int:
    """Return how many blocks fit into the register file: each partition holds whole warps."""
    registers_per_warp = cdiv(max(1, registers) * WARP_THREADS, REGISTER_UNIT) * REGISTER_UNIT
    return limits.registers_per_sm // REGISTER_PARTITIONS // registers_per_warp * REGISTER_PARTITIONS // warps


def _blocks_by_shared(limits: DeviceLimits, shared_bytes: int) -> int:
    """Return how many blocks fit into shared memory, including the driver's reserved part of each."""
    if shared_bytes > limits.shared_per_block:
        return 0
    bytes_per_block = cdiv(shared_bytes + limits.reserved_shared_per_block, SHARED_UNIT) * SHARED_UNIT
    return limits.shared_per_sm // bytes_per_block if bytes_per_block else limits.blocks_per_sm
