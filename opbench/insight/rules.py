"""Rules that recommend mechanisms for the facts of a case.

They do not know the operator's other variants, so they hold for any kernel. `tests/advice_score.py` scores them on the
ladders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from opbench import units
from opbench.insight.facts import PRODUCT, WARP, Facts
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

TILED = 200
"""From this many multiply-adds in the machine code on, a thread computes a tile of outputs in registers."""
INTEGERS = 100
"""From this many integer instructions on, index arithmetic takes longer than the loads that it serves."""
WIDE = 8
"""Accesses of at least this many bytes a lane, on average, count as vectorised."""
FAR = 8.0
"""Up to this multiple of its bound, wide accesses gain more for a stream of several kernels than fewer passes."""
OCCUPIED = 0.5
"""With a smaller occupancy, the resource that limits it is named."""
FEW_WAVES = 0.2
"""From this share of the time on that multiprocessors idle in the last wave of blocks, the tail is named."""
REUSED = 4.0
"""From this many reads of each byte on, reuse can be the limit of a kernel with few FLOPs per byte."""
BUSY = 10.0
"""With as many instructions between two barriers, these take longer than the barriers."""
REPEATED = 1.8
"""From this many reads of each byte on, passes over the data are repeated."""
MOSTLY_IDLE = 0.5
"""From this share on, lanes without a thread are the limit."""
DOUBLES = 0.1
"""From this share of the instructions on, double arithmetic is the limit of a problem in float."""
COLLIDING = 0.5
"""From this share of the passes on, lanes of atomics that wait for each other are the limit."""
SCATTERED = 8.0
"""From this many sectors on, the lanes of an atomic request have scattered addresses."""
LAUNCHES = 0.3
"""From this share of the time on, several launches bind: each takes at least the time of an empty kernel."""
EVICTED = 1.3
"""From this multiple of the compulsory bytes on, DRAM moves data again that had left the caches."""
STALLED = 0.3
"""Smallest share of the samples of warps that makes a stall the limit."""
LOST = 20.0
"""A product that takes this multiple of its lower bound computes mostly outputs that do not exist."""

Recommendation = tuple[str, float, str, str, str]
"""Mechanism, strength, what binds, source and evidence."""
Rule = Callable[[Facts], Iterator[Recommendation]]


def _uncoalesced(facts: Facts) -> Iterator[Recommendation]:
    scattered = facts.wasted_sectors > 0.7 or (facts.wasted_sectors > 0.45 and facts.sectors_per_request > 12)
    if not scattered or facts.tensor:
        return
    each = f"{facts.sectors_per_request:.1f} sectors for each global request"
    evidence = f"{each}; {units.percent(facts.wasted_sectors)} of them are not needed"
    yield COALESCED, 0.95, "coalescing", "counted", evidence
    if facts.shares or facts.shuffles:
        return
    if facts.reads <= 1.1 and not facts.flops_per_byte:
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


def _bank_conflicts(facts: Facts) -> Iterator[Recommendation]:
    if facts.conflict_share > 0.1 and not facts.tensor:
        evidence = f"bank conflicts take {units.percent(facts.conflict_share)} of the passes"
        yield BANK_CONFLICT_FREE, min(1.0, 1.2 * facts.conflict_share), "bank conflicts", "counted", evidence


def _atomics(facts: Facts) -> Iterator[Recommendation]:
    if facts.collision_share > COLLIDING:
        evidence = f"lanes of atomics wait for each other in {units.percent(facts.collision_share)} of the passes"
        yield BLOCK_REDUCTION, 0.94, "atomics", "counted", evidence
    if facts.atomic_share > 0.3:
        evidence = f"{units.percent(facts.atomic_share)} of the global requests are atomics"
        if facts.sectors_per_atomic > SCATTERED:
            evidence += f", to {facts.sectors_per_atomic:.1f} sectors each"
        # More blocks would only wait for each other at the same addresses.
        yield BLOCK_REDUCTION, 0.94 if facts.atomic_share >= 0.5 else 0.9, "atomics", "counted", evidence


def _doubles(facts: Facts) -> Iterator[Recommendation]:
    if facts.doubles_share > DOUBLES:
        evidence = f"{facts.doubles} instructions are double arithmetic, {units.percent(facts.doubles_share)} of all"
        yield "single_precision", 0.87, "arithmetic units", "compiled", evidence


def _tensor_cores_fed_by_threads(facts: Facts) -> Iterator[Recommendation]:
    if not facts.tensor or facts.bulk_copies:
        return
    fed = "threads copy the operands of tensor cores"
    if facts.over_bound > LOST:
        yield from _lost(facts)
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
        yield "async_copy", 0.8, "tensor-core feed", "compiled", f"{fed} through registers"
        yield "double_buffer", 0.78, "tensor-core feed", "compiled", f"{fed} through registers"
    yield "tma", 0.85, "tensor-core feed", "compiled", fed
    yield "warp_specialised", 0.7, "tensor-core feed", "compiled", fed
    yield (
        "fewer_operations",
        0.75,
        "arithmetic units",
        "measured",
        f"{facts.over_bound:.1f} times the bound of the tensor cores",
    )


def _tensor_cores_fed_by_tma(facts: Facts) -> Iterator[Recommendation]:
    if not facts.tensor or not facts.bulk_copies:
        return
    several = f"{facts.kernels} kernels"
    if facts.idle:
        yield (
            "split_k",
            0.5,
            "idle multiprocessors",
            "measured",
            f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU",
        )
    if facts.kernels > 2 or (facts.kernels > 1 and facts.atomic_share):
        yield "fused", 0.82, "passes over the data", "counted", several
    if facts.kernels > 1:
        yield CONVERTED_AHEAD, 0.75, "passes over the data", "counted", several
    fed = f"{facts.over_bound:.1f} times the bound of the tensor cores"
    yield "compile_time_sizes", 0.7, "tensor-core feed", "measured", fed
    yield "warp_specialised", 0.6, "tensor-core feed", "measured", fed
    yield "persistent", 0.6, "tensor-core feed", "measured", fed
    yield "double_buffer", 0.55, "tensor-core feed", "measured", fed


def _lost(facts: Facts) -> Iterator[Recommendation]:
    """Advise on a kernel with tiles for large products whose problem has few rows, channels or filters."""
    evidence = f"{facts.over_bound:.0f} times the bound: most of a tile lies outside of the result"
    yield "compile_time_sizes", 0.935, "wasted work", "measured", evidence
    yield FEW_CHANNELS, 0.92, "wasted work", "measured", evidence


def _product_on_cuda_cores(facts: Facts) -> Iterator[Recommendation]:
    if facts.tensor or facts.flops_per_byte <= PRODUCT:
        return
    reads = f"each byte is asked for {facts.reads:.0f} times"
    if facts.reads <= 1.2 and not facts.shares:
        yield (
            "unrolled",
            0.9,
            "latency",
            "counted",
            "each byte is asked for once, and each operation waits for the last one",
        )
    elif not facts.shares:
        yield SHARED_MEMORY_TILE, 0.9, "reuse", "counted", reads
        yield REGISTER_TILE, 0.8, "reuse", "counted", reads
        constant = 0.7 if facts.integers > 60 else 0.5
        yield "compile_time_sizes", constant, "instruction issue", "compiled", f"{facts.integers} integer instructions"
        yield (
            COALESCED,
            0.6,
            "coalescing",
            "counted",
            f"{facts.sectors_per_request:.1f} sectors for each global request",
        )
    elif facts.multiply_adds >= TILED:
        fma = f"{facts.over_bound:.1f} times the bound of the multiply-add units"
        if facts.over_bound > LOST:
            yield from _lost(facts)
        yield "tensor_core", 0.94, "arithmetic units", "compiled", "all products are made by CUDA cores"
        if facts.waves < 1:
            idle = f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU"
            yield "split_k", 0.75, "idle multiprocessors", "measured", idle
            yield "sliced_k", 0.7, "idle multiprocessors", "measured", idle
        yield "double_buffer", 0.72, "latency", "measured", fma
        yield "async_copy", 0.7, "latency", "measured", fma
        if facts.width < WIDE:
            yield VECTORISED_ACCESS, 0.65, "access width", "counted", f"{facts.width:.1f} bytes a lane"
    else:
        loads = f"{facts.shared_per_global:.0f} requests of shared memory for each of global memory"
        yield REGISTER_TILE, 0.9, "reuse", "counted", loads
        yield VECTORISED_ACCESS, 0.8, "access width", "counted", loads
        yield "tensor_core", 0.7, "arithmetic units", "compiled", "all products are made by CUDA cores"


def _barriers(facts: Facts) -> Iterator[Recommendation]:
    if not facts.barriers or facts.requests_per_barrier >= 4:
        return
    evidence = f"{facts.requests_per_barrier:.1f} requests of a warp between two barriers"
    waiting = facts.instructions_per_barrier < BUSY
    if facts.instructions_per_barrier < math.inf:
        evidence += f", {facts.instructions_per_barrier:.0f} instructions"
    yield FEWER_BARRIERS, 0.88 if waiting else 0.76, "barriers", "counted", evidence
    if not facts.shuffles:
        yield "warp_shuffle", 0.86 if waiting else 0.77, "barriers", "counted", evidence


def _stream(facts: Facts) -> Iterator[Recommendation]:
    if facts.tensor or facts.flops_per_byte > PRODUCT:
        return
    passes = f"each byte is asked for {facts.reads:.1f} times"
    if facts.shares and facts.multiply_adds >= 2 * TILED:
        yield from _lost(facts)
    if facts.waves < 0.3 and facts.over_bound > 3:
        idle = f"{facts.blocks} blocks fill {units.percent(facts.waves)} of the GPU"
        # Merging several launches spreads the work of the idle one over all multiprocessors, too.
        merged = facts.kernels > 1 and facts.reads >= REPEATED
        yield "split_k", 0.84 if merged else 0.93, "idle multiprocessors", "measured", idle
    if facts.reads >= REPEATED and (facts.barriers or facts.kernels > 1):
        strength = 0.85 if facts.width >= WIDE or facts.over_bound > 1.5 else 0.6
        joined = "fewer_passes" if facts.kernels == 1 or not facts.shuffles else "fused"
        if joined == "fused" and facts.width < WIDE and facts.over_bound < FAR:
            strength = 0.7  # wide accesses are the smaller change
        yield joined, strength, "passes over the data", "counted", passes
        yield "fused" if facts.kernels > 1 else FEWER_BARRIERS, 0.5, "passes over the data", "counted", passes
    yield from _barriers(facts)
    integers = f"{facts.integers} integer instructions"
    if facts.integer_ratio < 1 and facts.reads >= REUSED and not facts.shares:
        # Requests take longer than the integers between them.
        yield SHARED_MEMORY_TILE, 0.86, "reuse", "counted", passes
        yield "compile_time_sizes", 0.55, "instruction issue", "compiled", integers
    elif facts.integers >= INTEGERS:
        yield "compile_time_sizes", 0.55 if facts.barriers else 0.85, "instruction issue", "compiled", integers
    elif facts.conversions >= 2 and facts.integers >= 20 and not facts.barriers:
        yield "no_division", 0.8, "instruction issue", "compiled", f"{integers}, divisions among them"
        yield "compile_time_sizes", 0.6, "instruction issue", "compiled", integers
    width = f"{facts.width:.1f} bytes a lane"
    if facts.width < WIDE:
        alone = facts.over_bound < 1.6 and facts.integers < INTEGERS
        yield VECTORISED_ACCESS, 0.82 if alone else 0.75, "access width", "counted", width
        yield "unrolled", 0.45, "latency", "counted", width
        if facts.reads >= 1.5 and not facts.barriers:
            yield REGISTER_TILE, 0.78 if facts.integers < INTEGERS else 0.5, "reuse", "counted", passes
    else:
        yield "unrolled", 0.5, "latency", "measured", f"{facts.over_bound:.1f} times the bound with wide accesses"


def _launch(facts: Facts) -> Iterator[Recommendation]:
    """Advise on resources, waves and launches; each is weak evidence compared with what the accesses say."""
    if facts.local_bytes:
        evidence = f"{facts.local_bytes} bytes of local memory a thread: registers spill, or an index is not constant"
        yield "compile_time_sizes", 0.42, "local memory", "compiled", evidence
    if facts.idle_lanes > MOSTLY_IDLE and not facts.tensor:
        evidence = f"{units.percent(facts.idle_lanes)} of the lanes have no thread, as blocks are smaller than a warp"
        yield BLOCK_REDUCTION, 0.96 * facts.idle_lanes, "wasted work", "counted", evidence
    elif facts.idle_lanes:
        evidence = f"{units.percent(facts.idle_lanes)} of the lanes have no thread, as blocks are no multiple of {WARP}"
        yield "flat_index", 0.3, "wasted work", "counted", evidence
    if facts.occupancy < OCCUPIED and not facts.tensor:
        by = f", limited by {facts.limiter}" if facts.limiter else ""
        yield "unrolled", 0.51, "occupancy", "compiled", f"occupancy is {units.percent(facts.occupancy)}{by}"
    if facts.tail > FEW_WAVES:
        evidence = f"the last wave of blocks is not full: {units.percent(facts.tail)} of the time is a tail"
        yield "persistent", 0.4, "tail", "measured", evidence
    if facts.blocks and facts.kind == "stream" and facts.width >= WIDE:
        yield "grid_stride", 0.3, "launches", "measured", f"{facts.blocks} blocks"
    if facts.kernels > 1 and facts.launch_share > LAUNCHES:
        evidence = f"{units.percent(min(1.0, facts.launch_share))} of the time is that of as many empty kernels"
        yield "fused", 0.76, "launches", "measured", evidence
        yield "overlapped_launch", 0.6, "launches", "measured", evidence


def _hardware_counters(facts: Facts) -> Iterator[Recommendation]:
    if facts.dram_over > EVICTED:
        evidence = f"DRAM moves {units.ratio(facts.dram_over)} the compulsory bytes"
        cure = "fewer_passes" if facts.flops_per_byte <= PRODUCT else REGISTER_TILE
        yield cure, 0.6, "L2 reuse", "measured", evidence
    for reason, share in facts.stalls:
        stall = find_stall(reason)
        if share < STALLED or stall is None or stall.works or not stall.mechanisms:
            continue
        evidence = f"warps stall {units.percent(share)} of the time on {stall.title}"
        yield stall.mechanisms[0], 0.5, "barriers" if reason == "barrier" else "latency", "measured", evidence


RULES: Sequence[Rule] = (
    _uncoalesced,
    _bank_conflicts,
    _atomics,
    _doubles,
    _tensor_cores_fed_by_threads,
    _tensor_cores_fed_by_tma,
    _product_on_cuda_cores,
    _stream,
    _launch,
    _hardware_counters,
)
