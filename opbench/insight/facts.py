"""Derive from a case's counts, machine code, launch and time the ratios that the rules of the advice read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from opbench.backend.counts import Traffic, ratio_or_zero
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.diagnosis import barrier_waits
from opbench.insight.gains import KernelKind
from opbench.insight.instructions import executed_instructions

PRODUCT_FLOPS_PER_BYTE = 20.0
"""From this many FLOPs per compulsory byte on, reuse decides: the case is treated as a product of matrices."""
FILLED_WAVES = 0.7
"""With a smaller share of one wave of blocks, multiprocessors are idle."""
WARP = 32
ACCESSES = ("LDG", "STG", "LDS", "STS", "LDGSTS", "ATOM", "RED", "LD", "ST")
"""Classes of instructions that access global or shared memory."""
INTEGER_CLASSES = ("IMAD", "IADD", "other integer")
KNOWN_REQUESTS = 0.5
"""The integer ratio is known if at least this share of the requests is in basic blocks with known executions."""
INTEGERS_PER_CYCLE = 2.0
"""Integer instructions of warps that a multiprocessor executes per cycle; a request of 128 bytes takes a cycle."""


@dataclass(frozen=True)
class Facts:
    """Ratios of a case that the rules of `opbench.insight.rules` read.

    Ratios of a small counted problem hold for a large one, too.
    """

    over_bound: float
    """Time divided by the lower bound of the problem."""
    flops_per_byte: float
    """FLOPs per compulsory byte."""
    blocks: int
    """Blocks of the kernel that takes longest; 0 for a case that was not measured."""
    waves: float
    """`blocks` divided by the blocks of this kernel that the GPU holds at the same time."""
    kernels: int
    """How many different kernels the case launches."""
    sectors_per_request: float = 0.0
    """32-byte sectors that a request of a global load or store touches on average; atomics are not included."""
    wasted_sectors: float = 0.0
    """Share of the sectors of global loads and stores that contiguous accesses would not need."""
    reads_per_byte: float = 0.0
    """Bytes that global requests ask for, divided by the compulsory bytes."""
    bytes_per_lane: float = 0.0
    """Mean bytes that a lane accesses in a global request."""
    shared_per_global: float = 0.0
    """Requests of shared memory divided by requests of global memory."""
    conflict_share: float = 0.0
    """Share of all passes that bank conflicts take."""
    atomic_share: float = 0.0
    """Requests of global atomics divided by all global requests."""
    collision_share: float = 0.0
    """Share of all passes in which lanes of an atomic request wait for another lane at the same address."""
    sectors_per_atomic: float = 0.0
    """Mean sectors that a request of a global atomic touches."""
    barriers: float = 0.0
    """Block-wide barriers per block, in the kernel with the most."""
    requests_per_barrier: float = math.inf
    """Requests of a warp between two barriers."""
    instructions_per_barrier: float = math.inf
    """Instructions of a warp between two barriers: the requests times the instructions in the code for each access."""
    multiply_adds: int = 0
    """Float multiply-add instructions (FFMA) in the machine code."""
    tensor_instructions: int = 0
    """Tensor-core instructions in the machine code."""
    shuffles: int = 0
    """Shuffle instructions in the machine code."""
    async_copies: int = 0
    """Asynchronous copies by threads (LDGSTS) in the machine code."""
    bulk_copies: int = 0
    """Copies by TMA in the machine code."""
    integer_instructions: int = 0
    """Integer instructions in the machine code."""
    integer_ratio: float = math.inf
    """Cycles of the executed integer instructions, divided by those of global accesses; inf if not known."""
    conversions: int = 0
    """Conversions between integers and floats in the machine code; each division of integers has two."""
    double_instructions: int = 0
    """Double-precision instructions in the machine code; 0 if the operands of the problem are double."""
    double_instruction_share: float = 0.0
    """Share of all instructions in the machine code that `double_instructions` counts."""
    over_tensor_bound: float = 0.0
    """Time divided by the lower bound on tensor cores for the type of the operands; 0 if not known."""
    occupancy: float = 1.0
    """Warps of the slowest kernel that a multiprocessor can hold, divided by the most warps that the GPU allows."""
    limiter: str = ""
    """The resource that limits the occupancy, such as "registers"."""
    local_bytes: int = 0
    """Bytes of local memory per thread: spilled registers, or arrays whose index the compiler does not know."""
    idle_lanes: float = 0.0
    """Share of the lanes of warps that have no thread, averaged over all kernels by their time."""
    tail_share: float = 0.0
    """Share of the time in which multiprocessors idle, as the last wave of blocks is not full."""
    launch_share: float = 0.0
    """Time of as many empty kernels as are launched, divided by the time of the case."""
    dram_over_compulsory: float = 0.0
    """Bytes of DRAM that the hardware counted, divided by the compulsory bytes; 0 without hardware counters."""
    bound_s: float = 0.0
    """Lower bound of the problem in seconds; 0 if it is not known."""
    stalls: tuple[tuple[str, float], ...] = ()
    """Reasons why warps wait and their shares of all samples, by hardware counters; () without them."""

    @property
    def kind(self) -> KernelKind:
        """Return the kind of kernel on which the gains of mechanisms depend."""
        return (
            "tensor"
            if self.tensor_instructions
            else "product"
            if self.flops_per_byte > PRODUCT_FLOPS_PER_BYTE
            else "stream"
        )

    @property
    def underfills_gpu(self) -> bool:
        """Return whether the blocks of the slowest kernel leave multiprocessors idle."""
        return self.waves < FILLED_WAVES

    @property
    def uses_shared_memory(self) -> bool:
        """Return whether the kernel uses shared memory."""
        return self.shared_per_global > 0.05


def facts_of(
    traffic: Traffic,
    compulsory_bytes: int,
    compiled: Mapping[str, LaunchResources],
    launched: Mapping[str, LaunchResources],
    over_bound: float,
    flops_per_byte: float,
    launch_share: float = 0.0,
    counters: Mapping[str, Any] = MappingProxyType({}),
    double_operands: bool = False,
) -> Facts:
    """Return the facts of a case from its counted traffic at a small problem and its launch at the measured one.

    `compulsory_bytes` are those of the counted problem. By kernel name, `compiled` has the machine code and `launched`
    the grids. `launch_share` is the time of one empty kernel divided by the time of the case. `counters` are hardware
    counters, with the compulsory bytes of the measured problem as "compulsory_bytes". With `double_operands` the
    problem itself needs double arithmetic.
    """
    total_traffic = traffic.scaled_to_all_blocks()
    accesses = total_traffic.select(space="global")
    requests = sum(entry.requests for entry in accesses)
    lanes = sum(entry.lanes for entry in accesses)
    # Another index order does not help atomics to scattered addresses, so they are no evidence against coalescing.
    loads_and_stores = [entry for entry in accesses if entry.kind != "atomic"]
    atomics = total_traffic.select(space="global", kind="atomic")
    sectors = sum(entry.sectors for entry in loads_and_stores)
    collisions = sum(entry.collisions for entry in total_traffic.lines)
    requested_bytes = sum(entry.bytes for entry in accesses)
    wavefronts = total_traffic.total("wavefronts", space="shared")
    wait_count = sum(barrier_waits(kernel) for kernel in total_traffic.kernels)
    classes: Counter[str] = Counter()
    for resources in compiled.values():
        classes.update(resources.sass.classes if resources.sass else {})
    tensor_kernels = [
        name for name, resource in compiled.items() if resource.sass and resource.sass.classes.get("tensor")
    ]
    time_shares = time_shares_of(
        total_traffic, {name: resource for name, resource in launched.items() if name in tensor_kernels} or launched
    )
    slowest = launched[max(time_shares, key=lambda name: time_shares[name])]
    dram_bytes, required_bytes = counters.get("dram_bytes") or 0.0, counters.get("compulsory_bytes") or 0
    return Facts(
        over_bound=over_bound,
        flops_per_byte=flops_per_byte,
        blocks=math.prod(slowest.grid or ()),
        waves=math.inf if slowest.waves is None else slowest.waves,
        kernels=len(total_traffic.kernels),
        sectors_per_request=ratio_or_zero(sectors, sum(entry.requests for entry in loads_and_stores)),
        wasted_sectors=ratio_or_zero(sectors - sum(entry.ideal_sectors for entry in loads_and_stores), sectors),
        reads_per_byte=ratio_or_zero(requested_bytes, compulsory_bytes),
        bytes_per_lane=ratio_or_zero(requested_bytes, lanes),
        shared_per_global=ratio_or_zero(total_traffic.total("requests", space="shared"), max(1, requests)),
        conflict_share=ratio_or_zero(
            total_traffic.total("conflicts", space="shared"), wavefronts + sum(entry.sectors for entry in accesses) / 4
        ),
        atomic_share=ratio_or_zero(sum(entry.requests for entry in atomics), requests),
        collision_share=ratio_or_zero(
            collisions, wavefronts + sum(entry.sectors for entry in accesses) / 4 + collisions
        ),
        sectors_per_atomic=ratio_or_zero(
            sum(entry.sectors for entry in atomics), sum(entry.requests for entry in atomics)
        ),
        barriers=max((kernel.barriers_per_block for kernel in total_traffic.kernels), default=0.0),
        requests_per_barrier=total_traffic.total("requests") / wait_count if wait_count else math.inf,
        instructions_per_barrier=_instructions_per_barrier(total_traffic, compiled),
        multiply_adds=classes["FFMA"],
        tensor_instructions=classes["tensor"],
        shuffles=classes["SHFL"],
        async_copies=classes["LDGSTS"],
        bulk_copies=classes["TMA"],
        integer_instructions=sum(classes[name] for name in INTEGER_CLASSES),
        integer_ratio=_integer_ratio(traffic, compiled),
        conversions=classes["convert"],
        double_instructions=0 if double_operands else classes["fp64"],
        double_instruction_share=0.0 if double_operands else ratio_or_zero(classes["fp64"], sum(classes.values())),
        occupancy=1.0 if slowest.occupancy is None else slowest.occupancy,
        limiter=slowest.limiter,
        local_bytes=max(resource.local_bytes for resource in launched.values()),
        idle_lanes=sum(share * _idle_lanes(launched[name]) for name, share in time_shares.items()),
        tail_share=sum(share * _tail_share(launched[name].waves) for name, share in time_shares.items()),
        launch_share=launch_share * sum(kernel.launches for kernel in total_traffic.kernels),
        dram_over_compulsory=ratio_or_zero(float(dram_bytes), required_bytes),
        stalls=tuple(sorted((counters.get("stall_shares") or {}).items(), key=lambda item: -item[1])),
    )


def time_shares_of(traffic: Traffic, launched: Mapping[str, LaunchResources]) -> dict[str, float]:
    """Return the estimated share of the time that each kernel takes.

    A kernel's time is its passes divided by the share of multiprocessors that it fills; time of arithmetic is not
    modelled. A request takes at least one pass, however few lanes it has. If no kernel was counted, the one with the
    most threads takes all of the time.
    """
    times = {}
    for name, resource in launched.items():
        lines = traffic.select(kernel=name)
        passes = sum(
            max(access.requests, access.sectors / 4, access.wavefronts) + access.collisions for access in lines
        )
        resident_blocks = resource.waves * resource.blocks_per_sm if resource.waves and resource.blocks_per_sm else 1.0
        times[name] = passes / min(1.0, resident_blocks)
    if not any(times.values()):
        times = {
            name: math.prod(resource.grid or ()) * math.prod(resource.block or ())
            for name, resource in launched.items()
        }
        return {name: float(time == max(times.values())) for name, time in times.items()}
    return {name: time / sum(times.values()) for name, time in times.items()}


def _instructions_per_barrier(traffic: Traffic, compiled: Mapping[str, LaunchResources]) -> float:
    """Return how many instructions a warp executes between two block-wide barriers; inf if not known.

    Only kernels with barriers count.
    """
    executed = wait_count = 0.0
    for kernel in traffic.kernels:
        code = resource.sass if (resource := compiled.get(kernel.kernel)) else None
        if not kernel.barriers or code is None:
            continue
        accesses = sum(code.classes.get(name, 0) for name in ACCESSES)
        executed += traffic.total("requests", kernel=kernel.kernel) * ratio_or_zero(
            sum(code.classes.values()), accesses
        )
        wait_count += barrier_waits(kernel)
    return executed / wait_count if wait_count and executed else math.inf


def _integer_ratio(traffic: Traffic, compiled: Mapping[str, LaunchResources]) -> float:
    """Return the cycles of integer instructions divided by those of global accesses; inf if not known.

    The executions of basic blocks with accesses are known; each warp is assumed to execute every other block once.
    """
    executed = executed_instructions(traffic, compiled)
    total_traffic = traffic.scaled_to_all_blocks()
    accesses = total_traffic.select(space="global")
    requests = sum(access.requests for access in accesses)
    if executed is None or not requests or executed.of(*ACCESSES) < KNOWN_REQUESTS * requests:
        return math.inf
    integers = executed.of(*INTEGER_CLASSES)
    for kernel in total_traffic.kernels:
        code = resource.sass if (resource := compiled.get(kernel.kernel)) else None
        warps = kernel.blocks * -(-kernel.threads // WARP)
        integers += warps * sum(code.classes.get(name, 0) for name in INTEGER_CLASSES) if code else 0
    return integers / INTEGERS_PER_CYCLE / sum(max(access.requests, access.sectors / 4) for access in accesses)


def _idle_lanes(resource: LaunchResources) -> float:
    """Return the share of the lanes of a block's warps that have no thread."""
    threads = math.prod(resource.block or ())
    return 1 - threads / (-(-threads // WARP) * WARP) if resource.block else 0.0


def _tail_share(waves: float | None) -> float:
    """Return the share of the time in which multiprocessors idle, as the last wave of blocks is not full."""
    return 1 - waves / math.ceil(waves) if waves is not None and 1 < waves < math.inf else 0.0


def time_over_bound_for(mechanism: str, facts: Facts) -> float:
    """Return the time of a case divided by the lower bound that a mechanism could reach.

    For `tensor_core` the lower bound is that of tensor cores, which is lower than that of CUDA cores.
    """
    return max(facts.over_bound, facts.over_tensor_bound) if mechanism == "tensor_core" else facts.over_bound
