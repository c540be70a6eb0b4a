"""Facts about a case that the rules of the advice read, from its counts, machine code, launch and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from opbench.backend.counts import Traffic
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.diagnosis import waits
from opbench.insight.gains import KernelKind
from opbench.insight.instructions import executed_instructions

PRODUCT = 20.0
"""From this many FLOPs per compulsory byte on, reuse decides: the case is treated as a product of matrices."""
FILLED = 0.7
"""With a smaller share of one wave of blocks, multiprocessors are idle."""
WARP = 32
ACCESSES = ("LDG", "STG", "LDS", "STS", "LDGSTS", "ATOM", "RED", "LD", "ST")
"""Classes of instructions that access global or shared memory."""
INTEGER_CLASSES = ("IMAD", "IADD", "other integer")
KNOWN = 0.5
"""With a smaller share of the requests in blocks of code whose executions are known, integers count by the code."""
INTEGERS_PER_CYCLE = 2.0
"""Integer instructions of warps that a multiprocessor executes in the cycle of one request of 128 bytes."""


@dataclass(frozen=True)
class Facts:
    """Ratios of a case that the rules read; as ratios, the counts of a small problem hold for a large one."""

    over_bound: float
    """Time divided by the lower bound of the problem."""
    flops_per_byte: float
    """FLOPs per compulsory byte."""
    blocks: int
    """0 for a case that was not measured: a small problem says nothing about them."""
    waves: float
    """Blocks divided by those that the GPU holds at a time; of the kernel that takes longest, as `blocks`."""
    kernels: int
    sectors_per_request: float = 0.0
    """Of global loads and stores, without atomics; as the next one."""
    wasted_sectors: float = 0.0
    """Share of the sectors that the bytes would not need."""
    reads: float = 0.0
    """Bytes that global requests ask for, divided by the compulsory bytes."""
    width: float = 0.0
    """Mean bytes a lane of global requests."""
    shared_per_global: float = 0.0
    """Requests of shared memory for each of global memory."""
    conflict_share: float = 0.0
    """Share of all passes that bank conflicts take."""
    atomic_share: float = 0.0
    """Requests of global atomics for each global request."""
    collision_share: float = 0.0
    """Share of all passes in which lanes of an atomic request wait for another lane at the same address."""
    sectors_per_atomic: float = 0.0
    """Sectors of a request of global atomics."""
    barriers: float = 0.0
    """Block-wide barriers of a block."""
    requests_per_barrier: float = math.inf
    """Requests of a warp between two barriers."""
    instructions_per_barrier: float = math.inf
    """Instructions of a warp between two barriers: the requests times the instructions in the code for each access."""
    multiply_adds: int = 0
    """Instructions in the machine code, as the next ones."""
    tensor: int = 0
    shuffles: int = 0
    async_copies: int = 0
    bulk_copies: int = 0
    integers: int = 0
    integer_ratio: float = math.inf
    """Cycles of the executed integer instructions, divided by those of global accesses; inf if not known."""
    conversions: int = 0
    """Between integers and floats, of which each division of integers has two."""
    doubles: int = 0
    """Double arithmetic, where the operands of the problem are not double."""
    doubles_share: float = 0.0
    """Share of all instructions in the machine code that are double arithmetic."""
    over_tensor: float = 0.0
    """Time divided by the lower bound on tensor cores, at the rate of the type of the operands; 0 if not known."""
    occupancy: float = 1.0
    """Warps that a multiprocessor can hold of the kernel that takes longest, divided by the most of any kernel."""
    limiter: str = ""
    """The resource that limits the occupancy, such as "registers"."""
    local_bytes: int = 0
    """Local memory of a thread: spilled registers, or arrays with an index that is not known to the compiler."""
    idle_lanes: float = 0.0
    """Share of the lanes of a block's warps that have no thread; of all kernels, weighed by their time."""
    tail: float = 0.0
    """Share of the time in which multiprocessors idle, as the last wave of blocks is not full."""
    launch_share: float = 0.0
    """Time of as many empty kernels as are launched, divided by the time of the case."""
    dram_over: float = 0.0
    """Bytes of DRAM that the hardware counted, divided by the compulsory bytes; 0 without hardware counters."""
    bound_s: float = 0.0
    """Lower bound of the problem in seconds; 0 if it is not known."""
    stalls: tuple[tuple[str, float], ...] = ()
    """Reasons why warps wait and their shares of all samples, by hardware counters; () without them."""

    @property
    def kind(self) -> KernelKind:
        """Return the kind of kernel, on which the gains of mechanisms depend."""
        return "tensor" if self.tensor else "product" if self.flops_per_byte > PRODUCT else "stream"

    @property
    def idle(self) -> bool:
        """Return whether the blocks do not fill the GPU."""
        return self.waves < FILLED

    @property
    def shares(self) -> bool:
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

    `compulsory_bytes` are those of the counted problem, `compiled` has the machine code, `launched` the grids.
    `launch_share` is the time of one empty kernel divided by the time of the case, `counters` are those of the
    hardware with the compulsory bytes of the measured problem as "compulsory_bytes". With `double_operands` the problem
    itself needs double arithmetic.
    """
    whole = traffic.estimated()
    accesses = whole.select(space="global")
    requests = sum(entry.requests for entry in accesses)
    lanes = sum(entry.lanes for entry in accesses)
    # Another index order does not help atomics to scattered addresses, so they are no evidence against coalescing.
    plain = [entry for entry in accesses if entry.kind != "atomic"]
    atomics = whole.select(space="global", kind="atomic")
    sectors = sum(entry.sectors for entry in plain)
    collisions = sum(entry.collisions for entry in whole.lines)
    asked = sum(entry.bytes for entry in accesses)
    wavefronts = whole.total("wavefronts", space="shared")
    waited = sum(waits(kernel) for kernel in whole.kernels)
    classes: Counter[str] = Counter()
    for resources in compiled.values():
        classes.update(resources.sass.classes if resources.sass else {})
    products = [name for name, used in compiled.items() if used.sass and used.sass.classes.get("tensor")]
    shares = launch_shares(whole, {name: used for name, used in launched.items() if name in products} or launched)
    longest = launched[max(shares, key=lambda name: shares[name])]
    dram, needed = counters.get("dram_bytes") or 0.0, counters.get("compulsory_bytes") or 0
    return Facts(
        over_bound=over_bound,
        flops_per_byte=flops_per_byte,
        blocks=math.prod(longest.grid or ()),
        waves=math.inf if longest.waves is None else longest.waves,
        kernels=len(whole.kernels),
        sectors_per_request=_share(sectors, sum(entry.requests for entry in plain)),
        wasted_sectors=_share(sectors - sum(entry.ideal_sectors for entry in plain), sectors),
        reads=_share(asked, compulsory_bytes),
        width=_share(asked, lanes),
        shared_per_global=_share(whole.total("requests", space="shared"), max(1, requests)),
        conflict_share=_share(
            whole.total("conflicts", space="shared"), wavefronts + sum(entry.sectors for entry in accesses) / 4
        ),
        atomic_share=_share(sum(entry.requests for entry in atomics), requests),
        collision_share=_share(collisions, wavefronts + sum(entry.sectors for entry in accesses) / 4 + collisions),
        sectors_per_atomic=_share(sum(entry.sectors for entry in atomics), sum(entry.requests for entry in atomics)),
        barriers=max((kernel.barriers_per_block for kernel in whole.kernels), default=0.0),
        requests_per_barrier=whole.total("requests") / waited if waited else math.inf,
        instructions_per_barrier=_instructions_per_barrier(whole, compiled),
        multiply_adds=classes["FFMA"],
        tensor=classes["tensor"],
        shuffles=classes["SHFL"],
        async_copies=classes["LDGSTS"],
        bulk_copies=classes["TMA"],
        integers=sum(classes[name] for name in INTEGER_CLASSES),
        integer_ratio=_integer_ratio(traffic, compiled),
        conversions=classes["convert"],
        doubles=0 if double_operands else classes["fp64"],
        doubles_share=0.0 if double_operands else _share(classes["fp64"], sum(classes.values())),
        occupancy=1.0 if longest.occupancy is None else longest.occupancy,
        limiter=longest.limiter,
        local_bytes=max(used.local_bytes for used in launched.values()),
        idle_lanes=sum(share * _idle_lanes(launched[name]) for name, share in shares.items()),
        tail=sum(share * _tail(launched[name].waves) for name, share in shares.items()),
        launch_share=launch_share * sum(kernel.launches for kernel in whole.kernels),
        dram_over=_share(float(dram), needed),
        stalls=tuple(sorted((counters.get("stall_shares") or {}).items(), key=lambda item: -item[1])),
    )


def launch_shares(traffic: Traffic, launched: Mapping[str, LaunchResources]) -> dict[str, float]:
    """Return the share of the time that each kernel takes, by a model: its passes on the multiprocessors that it uses.

    A request takes at least one pass, however few lanes it has. Where no kernel was counted, the one with the most
    threads takes all of the time. Time of arithmetic is not modelled.
    """
    times = {}
    for name, used in launched.items():
        lines = traffic.select(kernel=name)
        passes = sum(max(one.requests, one.sectors / 4, one.wavefronts) + one.collisions for one in lines)
        busy = used.waves * used.blocks_per_sm if used.waves and used.blocks_per_sm else 1.0
        times[name] = passes / min(1.0, busy)
    if not any(times.values()):
        times = {name: math.prod(used.grid or ()) * math.prod(used.block or ()) for name, used in launched.items()}
        return {name: float(time == max(times.values())) for name, time in times.items()}
    return {name: time / sum(times.values()) for name, time in times.items()}


def _instructions_per_barrier(traffic: Traffic, compiled: Mapping[str, LaunchResources]) -> float:
    """Return the instructions of a warp between two block-wide barriers, of the kernels with barriers."""
    executed = waited = 0.0
    for kernel in traffic.kernels:
        code = used.sass if (used := compiled.get(kernel.kernel)) else None
        if not kernel.barriers or code is None:
            continue
        accesses = sum(code.classes.get(name, 0) for name in ACCESSES)
        executed += traffic.total("requests", kernel=kernel.kernel) * _share(sum(code.classes.values()), accesses)
        waited += waits(kernel)
    return executed / waited if waited and executed else math.inf


def _integer_ratio(traffic: Traffic, compiled: Mapping[str, LaunchResources]) -> float:
    """Return the cycles of integer instructions divided by those of global accesses; inf without basic blocks.

    Executed instructions are known where accesses are, so each warp is taken to execute all others in the code once.
    """
    executed = executed_instructions(traffic, compiled)
    whole = traffic.estimated()
    accesses = whole.select(space="global")
    requests = sum(one.requests for one in accesses)
    if executed is None or not requests or executed.of(*ACCESSES) < KNOWN * requests:
        return math.inf
    integers = executed.of(*INTEGER_CLASSES)
    for kernel in whole.kernels:
        code = used.sass if (used := compiled.get(kernel.kernel)) else None
        warps = kernel.blocks * -(-kernel.threads // WARP)
        integers += warps * sum(code.classes.get(name, 0) for name in INTEGER_CLASSES) if code else 0
    return integers / INTEGERS_PER_CYCLE / sum(max(one.requests, one.sectors / 4) for one in accesses)


def _idle_lanes(used: LaunchResources) -> float:
    """Return the share of the lanes of a block's warps that have no thread."""
    threads = math.prod(used.block or ())
    return 1 - threads / (-(-threads // WARP) * WARP) if used.block else 0.0


def _tail(waves: float | None) -> float:
    """Return the share of the time in which multiprocessors idle, as the last wave of blocks is not full."""
    return 1 - waves / math.ceil(waves) if waves is not None and 1 < waves < math.inf else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def distance_of(mechanism: str, facts: Facts) -> float:
    """Return the multiple of the next lower bound, after the cure: tensor cores have a lower one than CUDA cores."""
    return max(facts.over_bound, facts.over_tensor) if mechanism == "tensor_core" else facts.over_bound
