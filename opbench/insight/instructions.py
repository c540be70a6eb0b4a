"""How many instructions warps execute: exact from a profile, or at least so many by machine code and accesses.

The emulator counts how often warps execute each access. A basic block of the machine code runs as often as a memory
instruction in it, so the accesses of its lines give the count of all its instructions. Blocks without such an access
get a count only from their neighbours, so the result is a lower bound. It is approximate where the compiler moved an
access out of a loop or merged two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from opbench.backend.counts import LineTraffic, Traffic
from opbench.gpu.limits.resources import OUTSIDE_KERNEL, CodeBlock, LaunchResources, MachineCode
from opbench.insight.lowering import INSTRUCTIONS, KERNEL_SUFFIX, lower

WARP = 32
COUNTED, APPROXIMATE = "counted", "approximate"
MEMORY_CLASSES = frozenset(
    ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS", "LDSM", "STSM", "ATOM", "RED", "LD", "ST", "SHFL")
)
"""Classes that pass through the load-store unit."""


@dataclass(frozen=True)
class Executed:
    """Warp instructions that all launches of a case execute."""

    classes: Mapping[str, float] = field(default_factory=dict)
    """By class, as in `MachineCode.classes`."""
    product_flops: Mapping[str, float] = field(default_factory=dict)
    """FLOPs of tensor-core instructions by precision: tf32, bf16."""
    source: str = APPROXIMATE
    """"counted" by the hardware, or "approximate": at least so many, from machine code and counted accesses."""
    known: float = 1.0
    """Share of the instructions in the code whose executions are known."""

    @property
    def total(self) -> float:
        """Return all instructions."""
        return sum(self.classes.values())

    def of(self, *classes: str) -> float:
        """Return the instructions of some classes."""
        return sum(self.classes.get(name, 0.0) for name in classes)


def executed_instructions(traffic: Traffic, resources: Mapping[str, LaunchResources]) -> Executed | None:
    """Return a lower bound on the instructions of all launches; None if a kernel's basic blocks are not known.

    `resources` contain the machine code with its blocks.
    """
    codes = {name: used.sass for name, used in resources.items() if used.sass and used.sass.blocks}
    if not traffic.complete or not traffic.kernels or any(entry.kernel not in codes for entry in traffic.kernels):
        return None
    whole = lower(traffic, codes).traffic.estimated()
    classes: defaultdict[str, float] = defaultdict(float)
    flops: defaultdict[str, float] = defaultdict(float)
    known = total = 0
    for entry in whole.kernels:
        code = codes[entry.kernel]
        warps = entry.blocks * -(-entry.threads // WARP)
        lines = whole.select(kernel=entry.kernel)
        counts = block_counts(code, lines, warps)
        for block, count in zip(code.blocks, counts, strict=True):
            size = sum(block.classes.values())
            total += size
            known += size if count else 0
            for name, number in block.classes.items():
                classes[name] += number * count
            for name, work in block.product_flops.items():
                flops[name] += work * count
        for name, least in _spread(code, lines, counts).items():
            classes[name] += least
    return Executed(dict(classes), dict(flops), APPROXIMATE, known / total if total else 0.0)


def block_counts(code: MachineCode, lines: Iterable[LineTraffic], warps: int) -> list[float]:
    """Return how often warps execute each basic block, at least; 0 for blocks whose executions are not known."""
    blocks = code.blocks
    counts = [0.0] * len(blocks)
    for position, access in _counts_of_accesses(blocks, lines).items():
        counts[position] = min(access)
    if blocks:
        counts[0] = max(counts[0], float(warps)) if not blocks[0].before else counts[0]
    for index, block in enumerate(blocks):
        if not block.in_loop:
            counts[index] = min(counts[index], float(warps))
    # A warp that executes a block outside of loops has passed all blocks that lie on every way to it.
    for index, passed in enumerate(_dominators(blocks)):
        if not blocks[index].in_loop:
            for other in passed:
                counts[other] = max(counts[other], counts[index])
    _pass_on(blocks, counts, warps)
    return counts


def _dominators(blocks: Sequence[CodeBlock]) -> list[set[int]]:
    """Return for each block the blocks on every way from the start to it, itself included."""
    every = set(range(len(blocks)))
    dominators = [{0} if index == 0 else set(every) for index in range(len(blocks))]
    changed = True
    while changed:
        changed = False
        for index, block in enumerate(blocks[1:], start=1):
            ways = [dominators[other] for other in block.before]
            new = ({index} | set.intersection(*ways)) if ways else {index}
            if new != dominators[index]:
                dominators[index] = new
                changed = True
    return dominators


def _counts_of_accesses(blocks: Sequence[CodeBlock], lines: Iterable[LineTraffic]) -> dict[int, list[float]]:
    """Return the executions of blocks by each line whose memory instructions of a kind are all in one block.

    Instructions without a predicate decide: a warp whose lanes are all switched off makes no request.
    """
    sure: dict[int, list[float]] = {}
    maybe: dict[int, list[float]] = {}
    for name, place, requests in _requests(blocks, lines):
        inside = {index: _copies(block.accesses, place, name) for index, block in enumerate(blocks)}
        guarded = {index: _copies(block.conditional, place, name) for index, block in enumerate(blocks)}
        places = {index for counts in (inside, guarded) for index, number in counts.items() if number}
        if len(places) != 1:
            continue
        (index,) = places
        count = requests / (inside[index] + guarded[index])
        (maybe if guarded[index] else sure).setdefault(index, []).append(count)
    return {**maybe, **sure}


def _requests(blocks: Sequence[CodeBlock], lines: Iterable[LineTraffic]) -> list[tuple[str, str, int]]:
    """Return instruction, place and requests of each line's loads and stores, as the machine code names them.

    Lines are left out whose instructions have other widths than their accesses: their requests are not those counted.
    """
    result: Counter[tuple[str, str]] = Counter()
    widths: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    compiled: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for block in blocks:
        for accesses in (block.accesses, block.conditional):
            for place, counts in accesses.items():
                for key in counts:
                    name, _, bits = key.partition(".")
                    compiled[name, place].add(int(bits) // 8)
    for entry in lines:
        opcode = INSTRUCTIONS.get((entry.space, entry.kind))
        if opcode and entry.line:
            own = entry.file.endswith(KERNEL_SUFFIX)
            at = opcode, str(entry.line) if own else f"{PurePath(entry.file).name}:{entry.line}"
            result[at] += entry.requests
            widths[at].add(entry.width)
    return [(*at, requests) for at, requests in result.items() if requests and widths[at] == compiled[at]]


def _copies(accesses: Mapping[str, Mapping[str, int]], place: str, name: str) -> int:
    return sum(number for key, number in accesses.get(place, {}).items() if key.partition(".")[0] == name)


def _pass_on(blocks: Sequence[CodeBlock], counts: list[float], warps: int) -> None:
    """Give blocks the counts of neighbours that run only together with them."""
    for _ in blocks:
        changed = False
        for index, block in enumerate(blocks):
            least = counts[index]
            for other in block.before:
                if blocks[other].after == (index,):
                    least = max(least, counts[other])
            for other in block.after:
                if other != OUTSIDE_KERNEL and blocks[other].before == (index,):
                    least = max(least, counts[other])
            if not block.in_loop:
                least = min(least, float(warps))
            if least > counts[index]:
                counts[index] = least
                changed = True
        if not changed:
            return


def _spread(code: MachineCode, lines: Iterable[LineTraffic], counts: Sequence[float]) -> dict[str, float]:
    """Return instructions, at least, of blocks that share a line's accesses, such as an unrolled loop and its rest.

    Only lines are used whose blocks have no count yet, and no block is used twice.
    """
    result: defaultdict[str, float] = defaultdict(float)
    used = {index for index, count in enumerate(counts) if count}
    for name, place, requests in sorted(_requests(code.blocks, lines), key=lambda entry: -entry[2]):
        copies = {
            index: _copies(block.accesses, place, name) + _copies(block.conditional, place, name)
            for index, block in enumerate(code.blocks)
        }
        places = [index for index, number in copies.items() if number]
        if len(places) < 2 or used & set(places):
            continue
        used |= set(places)
        every = {kind for index in places for kind in code.blocks[index].classes}
        for kind in every:
            result[kind] += requests * min(code.blocks[index].classes.get(kind, 0) / copies[index] for index in places)
    return result
