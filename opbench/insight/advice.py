"""Advice on one case: what binds it, the mechanism that cures it, and how much that gains.

The rules read counts of a small problem, machine code, and the launch and time of the measured problem. They do not
know the operator's other variants, so they hold for any kernel. `tests/advice_score.py` scores them on the ladders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from opbench import units
from opbench.backend.counts import Traffic
from opbench.backend.findings import place_text
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.diagnosis import Diagnosis, waits
from opbench.insight.gains import Gain, KernelKind, expected_gain
from opbench.insight.instructions import executed_instructions
from opbench.insight.stalls import find_stall
from opbench.kernels.mechanism import (
    BANK_CONFLICT_FREE,
    BLOCK_REDUCTION,
    COALESCED,
    CONVERTED_AHEAD,
    FEW_CHANNELS,
    FEWER_BARRIERS,
    MECHANISMS,
    REGISTER_TILE,
    SHARED_MEMORY_TILE,
    SHARED_MEMORY_TRANSPOSE,
    VECTORISED_ACCESS,
)

PRODUCT = 20.0
"""From this many FLOPs per compulsory byte on, reuse decides: the case is treated as a product of matrices."""
NEAR = 0.9
"""A case at this share of its lower bound gets no advice."""
TILED = 200
"""From this many multiply-adds in the machine code on, a thread computes a tile of outputs in registers."""
INTEGERS = 100
"""From this many integer instructions on, index arithmetic takes longer than the loads that it serves."""
WIDE = 8
"""Accesses of at least this many bytes a lane, on average, count as vectorised."""
FILLED = 0.7
"""With a smaller share of one wave of blocks, multiprocessors are idle."""
FAR = 8.0
"""Up to this multiple of its bound, wide accesses gain more for a stream of several kernels than fewer passes."""
OCCUPIED = 0.5
"""With a smaller occupancy, the resource that limits it is named."""
FEW_WAVES = 0.2
"""From this share of the time on that multiprocessors idle in the last wave of blocks, the tail is named."""
WARP = 32
ACCESSES = ("LDG", "STG", "LDS", "STS", "LDGSTS", "ATOM", "RED", "LD", "ST")
"""Classes of instructions that access global or shared memory."""
INTEGER_CLASSES = ("IMAD", "IADD", "other integer")
KNOWN = 0.5
"""With a smaller share of the requests in blocks of code whose executions are known, integers count by the code."""
INTEGERS_PER_CYCLE = 2.0
"""Integer instructions of warps that a multiprocessor executes in the cycle of one request of 128 bytes."""
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


@dataclass(frozen=True)
class Advice:
    """One mechanism that would make a case faster."""

    mechanism: str
    """A key of `opbench.kernels.mechanism.MECHANISMS`."""
    binds: str
    """The limit of the case: one of `LIMITS`."""
    source: str
    """How that is known: "measured" from launch, time and hardware counters, "counted" on the cpu backend ("predicted"
    where only some blocks were), "compiled", or "modelled" from the traffic, without a time."""
    evidence: str
    strength: float
    """How much speaks for it, from 0 to 1: a rank, no probability."""
    gain: Gain
    """Time before divided by time after, by the measured ladder steps most alike."""
    file: str = ""
    line: int = 0
    """The line to change; 0 if it is the whole kernel."""
    called_from: int = 0
    """For a line of a header: the calling line in the kernel's own file; otherwise 0."""
    further_lines: tuple[int, ...] = ()
    """Other lines of that file with the same problem."""
    avoidable_share: float = 0.0
    """The part of all counted passes or requests that these lines could save; 0 if no line is known."""
    examples: tuple[str, ...] = ()
    """Variants of the operator that use the mechanism."""
    in_use: bool = False
    """Whether the kernel has the mechanism, so that only other parameters are left to try."""

    @property
    def action(self) -> str:
        """Return what to do."""
        change = MECHANISMS[self.mechanism]
        return f"{change}; the kernel does, so search better parameters (opbench tune)" if self.in_use else change

    @property
    def place(self) -> str:
        """Return the place, such as "line 12"; empty if the whole kernel is to change."""
        return place_text(self.file, self.line, self.called_from) if self.line else ""

    @property
    def gain_text(self) -> str:
        """Return the gain with its range, such as "gain 1.53× (1.18× to 1.87×)"."""
        low, middle, high = map(units.ratio, self.gain)
        return f"gain {middle} ({low} to {high})"

    def sentence(self, gains: bool = True) -> str:
        """Return limit, line, change, evidence, gain and examples as one sentence.

        Without `gains`, only a time on a GPU can say what the change gains.
        """
        place = f" at {self.place}" if self.place else ""
        see = f"; see {', '.join(f'`{name}`' for name in self.examples[:2])}" if self.examples else ""
        gain = self.gain_text if gains else UNKNOWN_GAIN
        limit, evidence = (text[:1].upper() + text[1:] for text in (self.binds, self.evidence))
        return f"{limit}{place}: {self.action}. {evidence} ({self.source}); {gain}{see}"


UNKNOWN_GAIN = "gain known only from a time on a GPU"


LIMITS = (
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
)
"""The values of `Advice.binds`."""

Found = tuple[str, float, str, str, str]
"""Mechanism, strength, what binds, source and evidence."""
Rule = Callable[[Facts], Iterator[Found]]


def advise(
    facts: Facts,
    problems: Sequence[Diagnosis] = (),
    used: Collection[str] = (),
    remedies: Callable[[str], Sequence[str]] = lambda _: (),
    least: float = 1 / NEAR,
) -> list[Advice]:
    """Return all advice on a case, the strongest first; none for a case below `least` times its lower bound.

    `problems` are the diagnoses of the counted problem, which know lines. `used` are the mechanisms that the variant's
    header names: they are advised only if no rule knows another one. `remedies` returns the variants with a mechanism.
    """
    if facts.over_bound < least:
        return []
    strongest: dict[str, Found] = {}
    for rule in RULES:
        for found in rule(facts):
            if found[1] > strongest.get(found[0], ("", 0.0))[1]:
                strongest[found[0]] = found
    named = [_advice(*found, _gain(found[0], facts), problems, remedies) for found in strongest.values()]
    ranked = sorted(named, key=lambda one: -one.strength)
    fresh = [one for one in ranked if one.mechanism not in used]
    lines = advise_lines(problems, facts.over_bound, used, facts.kind, facts.bound_s)
    others = [one for one in lines if one.mechanism not in strongest]
    if fresh or others or facts.over_bound * NEAR < 1.0:
        return sorted((*fresh, *others), key=lambda one: -one.strength)
    return [replace(one, in_use=True, strength=0.0) for one in ranked[:1]]


def _gain(mechanism: str, facts: Facts) -> Gain:
    """Return the expected gain of a mechanism in a case with these facts."""
    return expected_gain(mechanism, distance_of(mechanism, facts), facts.kind, facts.bound_s)


def advise_lines(
    problems: Sequence[Diagnosis],
    over_bound: float = 1.0,
    used: Collection[str] = (),
    kind: KernelKind = "stream",
    bound_s: float = 0.0,
) -> list[Advice]:
    """Return advice from the counted problems of lines alone, the costliest first: without machine code or launch.

    The gains follow from the multiple of the lower bound and the bound `bound_s` in seconds, 0 if it is not known.
    """
    first: dict[str, Diagnosis] = {}
    for problem in problems:
        if problem.mechanism not in used:
            first.setdefault(problem.mechanism, problem)
    return [
        _advice(
            problem.mechanism,
            OF_A_LINE * min(1.0, problem.share),
            BOUND_BY.get(problem.kind, problem.kind),
            problem.source,
            problem.evidence,
            expected_gain(problem.mechanism, over_bound, kind, bound_s),
            problems,
            lambda _, found=problem: found.remedies,  # type: ignore[misc]
        )
        for problem in first.values()
    ]


def _advice(
    mechanism: str,
    strength: float,
    binds: str,
    source: str,
    evidence: str,
    gain: Gain,
    problems: Sequence[Diagnosis],
    remedies: Callable[[str], Sequence[str]],
) -> Advice:
    """Return one piece of advice with the lines whose counted problem the mechanism cures."""
    lines = [problem for problem in problems if problem.mechanism == mechanism and problem.line]
    same = [one for one in lines if (one.file, one.kind, one.unit) == (lines[0].file, lines[0].kind, lines[0].unit)]
    return Advice(
        mechanism=mechanism,
        binds=binds,
        source=source,
        evidence=evidence,
        strength=strength,
        gain=gain,
        file=lines[0].file if lines else "",
        line=lines[0].line if lines else 0,
        called_from=lines[0].called_from if lines else 0,
        further_lines=tuple(sorted({one.line for one in same} - {lines[0].line})) if lines else (),
        avoidable_share=min(1.0, sum(one.share for one in same)),
        examples=tuple(remedies(mechanism)),
    )


OF_A_LINE = 0.4
"""The strength of a problem of a line that all passes go to and that no rule knows: below those of the rules."""
BOUND_BY = {
    "uncoalesced": "coalescing",
    "strided": "coalescing",
    "scalar path": "access width",
    "narrow": "access width",
    "re-read": "reuse",
    "shared loads": "reuse",
    "atomic collisions": "atomics",
}
"""The limit that a kind of problem of `opbench.insight.diagnosis` belongs to, where the words differ."""


def distance_of(mechanism: str, facts: Facts) -> float:
    """Return the multiple of the next lower bound, after the cure: tensor cores have a lower one than CUDA cores."""
    return max(facts.over_bound, facts.over_tensor) if mechanism == "tensor_core" else facts.over_bound


def _uncoalesced(facts: Facts) -> Iterator[Found]:
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


def _bank_conflicts(facts: Facts) -> Iterator[Found]:
    if facts.conflict_share > 0.1 and not facts.tensor:
        evidence = f"bank conflicts take {units.percent(facts.conflict_share)} of the passes"
        yield BANK_CONFLICT_FREE, min(1.0, 1.2 * facts.conflict_share), "bank conflicts", "counted", evidence


def _atomics(facts: Facts) -> Iterator[Found]:
    if facts.collision_share > COLLIDING:
        evidence = f"lanes of atomics wait for each other in {units.percent(facts.collision_share)} of the passes"
        yield BLOCK_REDUCTION, 0.94, "atomics", "counted", evidence
    if facts.atomic_share > 0.3:
        evidence = f"{units.percent(facts.atomic_share)} of the global requests are atomics"
        if facts.sectors_per_atomic > SCATTERED:
            evidence += f", to {facts.sectors_per_atomic:.1f} sectors each"
        # More blocks would only wait for each other at the same addresses.
        yield BLOCK_REDUCTION, 0.94 if facts.atomic_share >= 0.5 else 0.9, "atomics", "counted", evidence


def _doubles(facts: Facts) -> Iterator[Found]:
    if facts.doubles_share > DOUBLES:
        evidence = f"{facts.doubles} instructions are double arithmetic, {units.percent(facts.doubles_share)} of all"
        yield "single_precision", 0.87, "arithmetic units", "compiled", evidence


def _tensor_cores_fed_by_threads(facts: Facts) -> Iterator[Found]:
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


def _tensor_cores_fed_by_tma(facts: Facts) -> Iterator[Found]:
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


def _lost(facts: Facts) -> Iterator[Found]:
    """Advise on a kernel with tiles for large products whose problem has few rows, channels or filters."""
    evidence = f"{facts.over_bound:.0f} times the bound: most of a tile lies outside of the result"
    yield "compile_time_sizes", 0.935, "wasted work", "measured", evidence
    yield FEW_CHANNELS, 0.92, "wasted work", "measured", evidence


def _product_on_cuda_cores(facts: Facts) -> Iterator[Found]:
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


def _barriers(facts: Facts) -> Iterator[Found]:
    if not facts.barriers or facts.requests_per_barrier >= 4:
        return
    evidence = f"{facts.requests_per_barrier:.1f} requests of a warp between two barriers"
    waiting = facts.instructions_per_barrier < BUSY
    if facts.instructions_per_barrier < math.inf:
        evidence += f", {facts.instructions_per_barrier:.0f} instructions"
    yield FEWER_BARRIERS, 0.88 if waiting else 0.76, "barriers", "counted", evidence
    if not facts.shuffles:
        yield "warp_shuffle", 0.86 if waiting else 0.77, "barriers", "counted", evidence


def _stream(facts: Facts) -> Iterator[Found]:
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


def _launch(facts: Facts) -> Iterator[Found]:
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


def _hardware_counters(facts: Facts) -> Iterator[Found]:
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
