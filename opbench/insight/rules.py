"""Recommend mechanisms for the facts of a case.

The rules do not know the operator's other variants, so they hold for any kernel. `tests/advice_score.py` scores them on
the ladders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from opbench import units
from opbench.insight.facts import PRODUCT_FLOPS_PER_BYTE, WARP, Facts
from opbench.insight.stalls import find_stall
from opbench.kernels.mechanism import (
    BANK_CONFLICT_FREE,
    BLOCK_REDUCTION,
    COALESCED,
    CONVERTED_AHEAD,
    FEW_CHANNELS,
    FEWER_BARRIERS,
    REGISTER_TILE,
    SHARED_MEMORY_TILE,
    SHARED_MEMORY_TRANSPOSE,
    VECTORISED_ACCESS,
)

TILED_MULTIPLY_ADDS = 200
"""From this many multiply-adds in the machine code on, a thread computes a tile of outputs in registers."""
MANY_INTEGERS = 100
"""From this many integer instructions on, index arithmetic takes longer than the loads that it serves."""
WIDE_BYTES = 8
"""Accesses of at least this many bytes a lane, on average, count as vectorised."""
FAR_FROM_BOUND = 8.0
"""Below this multiple of its bound, several kernels gain more from wide accesses than from fewer passes."""
LOW_OCCUPANCY = 0.5
"""A smaller occupancy is reported with the resource that limits it."""
LONG_TAIL = 0.2
"""If multiprocessors idle for more than this share of the time in the last wave of blocks, the tail is reported."""
REUSED_READS = 4.0
"""From this many reads of each byte on, reuse can be the limit of a kernel with few FLOPs per byte."""
BUSY_INSTRUCTIONS = 10.0
"""From this many instructions between two barriers on, the instructions take longer than the barriers."""
REPEATED_READS = 1.8
"""From this many reads of each byte on, passes over the data are repeated."""
MOSTLY_IDLE = 0.5
"""From this share on, lanes without a thread are the limit."""
DOUBLES_SHARE = 0.1
"""From this share of the instructions on, double arithmetic is the limit of a problem in float."""
COLLIDING_SHARE = 0.5
"""From this share of the passes on, lanes of atomics that wait for each other are the limit."""
SCATTERED_SECTORS = 8.0
"""From this many sectors on, the lanes of an atomic request have scattered addresses."""
LAUNCHES_SHARE = 0.3
"""From this share of the time on, launches are the limit: each takes at least the time of an empty kernel."""
EVICTED_RATIO = 1.3
"""From this multiple of the compulsory bytes on, DRAM moves data again that had left the caches."""
STALLED_SHARE = 0.3
"""Smallest share of the samples of warps that makes a stall the limit."""
WASTED_TILES = 20.0
"""Above this multiple of its lower bound, a product computes mostly elements outside of the result."""

Limit = Literal[
    "coalescing",
    "access width",
    "bank conflicts",
    "atomics",
    "reuse",
    "arithmetic units",
    "instruction issue",
    "barriers",
    "idle multiprocessors",
    "latency",
    "passes over the data",
    "tensor-core feed",
    "launches",
    "wasted work",
    "tail",
    "occupancy",
    "local memory",
    "L2 reuse",
    "divergence",
]
"""The limits of a case that advice can name."""
Recommendation = tuple[str, float, Limit, str, str]
"""Mechanism, strength, limit, source and evidence, as in `opbench.insight.advice.Advice`."""
Rule = Callable[[Facts], Iterator[Recommendation]]


def _recommend_coalescing(facts: Facts) -> Iterator[Recommendation]:
    """Recommend coalescing if global requests touch many sectors that their bytes do not need."""
    scattered = facts.wasted_sectors > 0.7 or (facts.wasted_sectors > 0.45 and facts.sectors_per_request > 12)
    if not scattered or facts.tensor_instructions:
        return
    sectors_text = f"{facts.sectors_per_request:.1f} sectors for each global request"
    evidence = f"{sectors_text}; {units.percent(facts.wasted_sectors)} of them are not needed"
    yield COALESCED, 0.95, "coalescing", "counted", evidence
    if facts.uses_shared_memory or facts.shuffles:
        return
    if facts.reads_per_byte <= 1.1 and not facts.flops_per_byte:
        yield SHARED_MEMORY_TRANSPOSE, 0.9, "coalescing", "counted", evidence
        yield "coalesced_stores", 0.8, "coalescing", "counted", evidence
    else:
        yield (
            BLOCK_REDUCTION,
            0.85,
            "coalescing",
            "counted",
            f"a thread reads far-apart elements one after the other; {evidence}",
        )
        yield "warp_shuffle", 0.6, "coalescing", "counted", evidence


def _recommend_conflict_free_layout(facts: Facts) -> Iterator[Recommendation]:
    """Recommend another layout in shared memory if bank conflicts take many passes."""
    if facts.conflict_share > 0.1 and not facts.tensor_instructions:
        evidence = f"bank conflicts take {units.percent(facts.conflict_share)} of the passes"
        yield BANK_CONFLICT_FREE, min(1.0, 1.2 * facts.conflict_share), "bank conflicts", "counted", evidence


def _recommend_block_reduction(facts: Facts) -> Iterator[Recommendation]:
    """Recommend a reduction in the block if atomics collide or are many."""
    if facts.collision_share > COLLIDING_SHARE:
        evidence = f"lanes of atomics wait for each other in {units.percent(facts.collision_share)} of the passes"
        yield BLOCK_REDUCTION, 0.94, "atomics", "counted", evidence
    if facts.atomic_share > 0.3:
        evidence = f"{units.percent(facts.atomic_share)} of the global requests are atomics"
        if facts.sectors_per_atomic > SCATTERED_SECTORS:
            evidence += f", to {facts.sectors_per_atomic:.1f} sectors each"
        # More blocks would only wait for each other at the same addresses.
        yield BLOCK_REDUCTION, 0.94 if facts.atomic_share >= 0.5 else 0.9, "atomics", "counted", evidence


def _recommend_single_precision(facts: Facts) -> Iterator[Recommendation]:
    """Recommend single precision if a problem in float computes in double."""
    if facts.double_instruction_share > DOUBLES_SHARE:
        evidence = (
            f"{facts.double_instructions} instructions are double arithmetic, "
            f"{units.percent(facts.double_instruction_share)} of all"
        )
        yield "single_precision", 0.87, "arithmetic units", "compiled", evidence


def _recommend_copies_to_tensor_cores(facts: Facts) -> Iterator[Recommendation]:
    """Recommend better copies for tensor-core kernels whose operands are copied by threads."""
    if not facts.tensor_instructions or facts.bulk_copies:
        return
    evidence = "threads copy the operands of tensor cores"
    if facts.over_bound > WASTED_TILES:
        yield from _recommend_other_tiles(facts)
    if facts.waves < 1:
        strength = 0.9 if facts.kernels == 1 else 0.65
        yield (
            "split_k",
            strength,
            "idle multiprocessors",
            "measured",
            f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU",
        )
    if not facts.async_copies:
        yield "async_copy", 0.8, "tensor-core feed", "compiled", f"{evidence} through registers"
        yield "double_buffer", 0.78, "tensor-core feed", "compiled", f"{evidence} through registers"
    yield "tma", 0.85, "tensor-core feed", "compiled", evidence
    yield "warp_specialised", 0.7, "tensor-core feed", "compiled", evidence
    yield (
        "fewer_operations",
        0.75,
        "arithmetic units",
        "measured",
        f"{facts.over_bound:.1f} times the bound of the tensor cores",
    )


def _recommend_tma_schedule(facts: Facts) -> Iterator[Recommendation]:
    """Recommend fewer passes and a better schedule for tensor-core kernels whose operands are copied by TMA."""
    if not facts.tensor_instructions or not facts.bulk_copies:
        return
    kernels_text = f"{facts.kernels} kernels"
    if facts.underfills_gpu:
        yield (
            "split_k",
            0.5,
            "idle multiprocessors",
            "measured",
            f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU",
        )
    if facts.kernels > 2 or (facts.kernels > 1 and facts.atomic_share):
        yield "fused", 0.82, "passes over the data", "counted", kernels_text
    if facts.kernels > 1:
        yield CONVERTED_AHEAD, 0.75, "passes over the data", "counted", kernels_text
    evidence = f"{facts.over_bound:.1f} times the bound of the tensor cores"
    yield "compile_time_sizes", 0.7, "tensor-core feed", "measured", evidence
    yield "warp_specialised", 0.6, "tensor-core feed", "measured", evidence
    yield "persistent", 0.6, "tensor-core feed", "measured", evidence
    yield "double_buffer", 0.55, "tensor-core feed", "measured", evidence


def _recommend_other_tiles(facts: Facts) -> Iterator[Recommendation]:
    """Recommend tiles of another size for a product with few rows, channels or filters."""
    evidence = f"{facts.over_bound:.0f} times the bound: most of a tile lies outside of the result"
    yield "compile_time_sizes", 0.935, "wasted work", "measured", evidence
    yield FEW_CHANNELS, 0.92, "wasted work", "measured", evidence


def _recommend_for_cuda_core_product(facts: Facts) -> Iterator[Recommendation]:
    """Recommend tiles, wide accesses or tensor cores for products on CUDA cores."""
    if facts.tensor_instructions or facts.flops_per_byte <= PRODUCT_FLOPS_PER_BYTE:
        return
    reads_text = f"each byte is asked for {facts.reads_per_byte:.0f} times"
    if facts.reads_per_byte <= 1.2 and not facts.uses_shared_memory:
        yield (
            "unrolled",
            0.9,
            "latency",
            "counted",
            "each byte is asked for once, and each operation waits for the last one",
        )
    elif not facts.uses_shared_memory:
        yield SHARED_MEMORY_TILE, 0.9, "reuse", "counted", reads_text
        yield REGISTER_TILE, 0.8, "reuse", "counted", reads_text
        strength = 0.7 if facts.integer_instructions > 60 else 0.5
        yield (
            "compile_time_sizes",
            strength,
            "instruction issue",
            "compiled",
            f"{facts.integer_instructions} integer instructions",
        )
        yield (
            COALESCED,
            0.6,
            "coalescing",
            "counted",
            f"{facts.sectors_per_request:.1f} sectors for each global request",
        )
    elif facts.multiply_adds >= TILED_MULTIPLY_ADDS:
        bound_text = f"{facts.over_bound:.1f} times the bound of the multiply-add units"
        if facts.over_bound > WASTED_TILES:
            yield from _recommend_other_tiles(facts)
        yield "tensor_core", 0.94, "arithmetic units", "compiled", "all products are made by CUDA cores"
        if facts.waves < 1:
            blocks_text = f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU"
            yield "split_k", 0.75, "idle multiprocessors", "measured", blocks_text
            yield "sliced_k", 0.7, "idle multiprocessors", "measured", blocks_text
        yield "double_buffer", 0.72, "latency", "measured", bound_text
        yield "async_copy", 0.7, "latency", "measured", bound_text
        if facts.bytes_per_lane < WIDE_BYTES:
            yield VECTORISED_ACCESS, 0.65, "access width", "counted", f"{facts.bytes_per_lane:.1f} bytes a lane"
    else:
        loads_text = f"{facts.shared_per_global:.0f} requests of shared memory for each of global memory"
        yield REGISTER_TILE, 0.9, "reuse", "counted", loads_text
        yield VECTORISED_ACCESS, 0.8, "access width", "counted", loads_text
        yield "tensor_core", 0.7, "arithmetic units", "compiled", "all products are made by CUDA cores"


def _recommend_fewer_barriers(facts: Facts) -> Iterator[Recommendation]:
    """Recommend fewer barriers if warps do little between two of them."""
    if not facts.barriers or facts.requests_per_barrier >= 4:
        return
    evidence = f"{facts.requests_per_barrier:.1f} requests of a warp between two barriers"
    barriers_dominate = facts.instructions_per_barrier < BUSY_INSTRUCTIONS
    if facts.instructions_per_barrier < math.inf:
        evidence += f", {facts.instructions_per_barrier:.0f} instructions"
    yield FEWER_BARRIERS, 0.88 if barriers_dominate else 0.76, "barriers", "counted", evidence
    if not facts.shuffles:
        yield "warp_shuffle", 0.86 if barriers_dominate else 0.77, "barriers", "counted", evidence


def _recommend_for_streams(facts: Facts) -> Iterator[Recommendation]:
    """Recommend fewer passes, less index arithmetic or wider accesses for kernels with few FLOPs per byte."""
    if facts.tensor_instructions or facts.flops_per_byte > PRODUCT_FLOPS_PER_BYTE:
        return
    reads_text = f"each byte is asked for {facts.reads_per_byte:.1f} times"
    if facts.uses_shared_memory and facts.multiply_adds >= 2 * TILED_MULTIPLY_ADDS:
        yield from _recommend_other_tiles(facts)
    if facts.waves < 0.3 and facts.over_bound > 3:
        blocks_text = f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU"
        # Merging several launches spreads the work of the idle one over all multiprocessors, too.
        fusible = facts.kernels > 1 and facts.reads_per_byte >= REPEATED_READS
        yield "split_k", 0.84 if fusible else 0.93, "idle multiprocessors", "measured", blocks_text
    if facts.reads_per_byte >= REPEATED_READS and (facts.barriers or facts.kernels > 1):
        strength = 0.85 if facts.bytes_per_lane >= WIDE_BYTES or facts.over_bound > 1.5 else 0.6
        mechanism = "fewer_passes" if facts.kernels == 1 or not facts.shuffles else "fused"
        if mechanism == "fused" and facts.bytes_per_lane < WIDE_BYTES and facts.over_bound < FAR_FROM_BOUND:
            strength = 0.7  # wide accesses are the smaller change
        yield mechanism, strength, "passes over the data", "counted", reads_text
        yield "fused" if facts.kernels > 1 else FEWER_BARRIERS, 0.5, "passes over the data", "counted", reads_text
    yield from _recommend_fewer_barriers(facts)
    integers_text = f"{facts.integer_instructions} integer instructions"
    if facts.integer_ratio < 1 and facts.reads_per_byte >= REUSED_READS and not facts.uses_shared_memory:
        # Requests take longer than the integers between them.
        yield SHARED_MEMORY_TILE, 0.86, "reuse", "counted", reads_text
        yield "compile_time_sizes", 0.55, "instruction issue", "compiled", integers_text
    elif facts.integer_instructions >= MANY_INTEGERS:
        yield "compile_time_sizes", 0.55 if facts.barriers else 0.85, "instruction issue", "compiled", integers_text
    elif facts.conversions >= 2 and facts.integer_instructions >= 20 and not facts.barriers:
        yield "no_division", 0.8, "instruction issue", "compiled", f"{integers_text}, divisions among them"
        yield "compile_time_sizes", 0.6, "instruction issue", "compiled", integers_text
    width_text = f"{facts.bytes_per_lane:.1f} bytes a lane"
    if facts.bytes_per_lane < WIDE_BYTES:
        is_only_limit = facts.over_bound < 1.6 and facts.integer_instructions < MANY_INTEGERS
        yield VECTORISED_ACCESS, 0.82 if is_only_limit else 0.75, "access width", "counted", width_text
        yield "unrolled", 0.45, "latency", "counted", width_text
        if facts.reads_per_byte >= 1.5 and not facts.barriers:
            yield (
                REGISTER_TILE,
                0.78 if facts.integer_instructions < MANY_INTEGERS else 0.5,
                "reuse",
                "counted",
                reads_text,
            )
    else:
        yield "unrolled", 0.5, "latency", "measured", f"{facts.over_bound:.1f} times the bound with wide accesses"


def _recommend_by_launch(facts: Facts) -> Iterator[Recommendation]:
    """Recommend by resources, waves and launches: weak evidence compared with the accesses."""
    if facts.local_bytes:
        evidence = f"{facts.local_bytes} bytes of local memory a thread: registers spill, or an index is not constant"
        yield "compile_time_sizes", 0.42, "local memory", "compiled", evidence
    if facts.idle_lanes > MOSTLY_IDLE and not facts.tensor_instructions:
        evidence = f"{units.percent(facts.idle_lanes)} of the lanes have no thread, as blocks are smaller than a warp"
        yield BLOCK_REDUCTION, 0.96 * facts.idle_lanes, "wasted work", "counted", evidence
    elif facts.idle_lanes:
        evidence = f"{units.percent(facts.idle_lanes)} of the lanes have no thread, as blocks are no multiple of {WARP}"
        yield "flat_index", 0.3, "wasted work", "counted", evidence
    if facts.occupancy < LOW_OCCUPANCY and not facts.tensor_instructions:
        limiter_text = f", limited by {facts.limiter}" if facts.limiter else ""
        yield "unrolled", 0.51, "occupancy", "compiled", f"occupancy is {units.percent(facts.occupancy)}{limiter_text}"
    if facts.tail_share > LONG_TAIL:
        evidence = f"the last wave of blocks is not full: {units.percent(facts.tail_share)} of the time is a tail"
        yield "persistent", 0.4, "tail", "measured", evidence
    if facts.blocks and facts.kind == "stream" and facts.bytes_per_lane >= WIDE_BYTES:
        yield "grid_stride", 0.3, "launches", "measured", f"{facts.blocks} blocks"
    if facts.kernels > 1 and facts.launch_share > LAUNCHES_SHARE:
        evidence = f"{units.percent(min(1.0, facts.launch_share))} of the time is that of as many empty kernels"
        yield "fused", 0.76, "launches", "measured", evidence
        yield "overlapped_launch", 0.6, "launches", "measured", evidence


def _recommend_by_counters(facts: Facts) -> Iterator[Recommendation]:
    """Recommend by hardware counters: bytes that DRAM moves again, and reasons why warps stall."""
    if facts.dram_over_compulsory > EVICTED_RATIO:
        evidence = f"DRAM moves {units.ratio(facts.dram_over_compulsory)} the compulsory bytes"
        mechanism = "fewer_passes" if facts.flops_per_byte <= PRODUCT_FLOPS_PER_BYTE else REGISTER_TILE
        yield mechanism, 0.6, "L2 reuse", "measured", evidence
    for reason, share in facts.stalls:
        stall = find_stall(reason)
        if share < STALLED_SHARE or stall is None or stall.works or not stall.mechanisms:
            continue
        evidence = f"warps stall {units.percent(share)} of the time on {stall.title}"
        yield stall.mechanisms[0], 0.5, "barriers" if reason == "barrier" else "latency", "measured", evidence


RULES: Sequence[Rule] = (
    _recommend_coalescing,
    _recommend_conflict_free_layout,
    _recommend_block_reduction,
    _recommend_single_precision,
    _recommend_copies_to_tensor_cores,
    _recommend_tma_schedule,
    _recommend_for_cuda_core_product,
    _recommend_for_streams,
    _recommend_by_launch,
    _recommend_by_counters,
)
