"""Find how many instructions warps execute: exactly from a profile, or at least by machine code and accesses.

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
from opbench.gpu.limits.resources import OUTSIDE_KERNEL, BasicBlock, LaunchResources, MachineCode
from opbench.insight.lowering import INSTRUCTIONS, KERNEL_SUFFIX, lower_traffic

WARP = 32
COUNTED, APPROXIMATE = "counted", "approximate"
MEMORY_CLASSES = frozenset(
    ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS", "LDSM", "STSM", "ATOM", "RED", "LD", "ST", "SHFL")
)
"""Classes that pass through the load-store unit."""


@dataclass(frozen=True)
class ExecutedInstructions:
    """The number of warp instructions that all launches of a case execute, by class of instruction."""

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
        """Return the number of instructions of all classes."""
        return sum(self.classes.values())

    def of(self, *classes: str) -> float:
        """Return how many instructions of some classes were executed."""
        return sum(self.classes.get(name, 0.0) for name in classes)


def executed_instructions(traffic: Traffic, resources: Mapping[str, LaunchResources]) -> ExecutedInstructions | None:
    """Return a lower bound on the instructions of all launches; None if a kernel's basic blocks are not known.

    `resources` contain the machine code with its blocks.
    """
    codes = {name: resource.sass for name, resource in resources.items() if resource.sass and resource.sass.blocks}
    if not traffic.complete or not traffic.kernels or any(entry.kernel not in codes for entry in traffic.kernels):
        return None
    total_traffic = lower_traffic(traffic, codes).traffic.scaled_to_all_blocks()
    classes: defaultdict[str, float] = defaultdict(float)
    flops: defaultdict[str, float] = defaultdict(float)
    known_instructions = all_instructions = 0
    for entry in total_traffic.kernels:
        code = codes[entry.kernel]
        warps = entry.blocks * -(-entry.threads // WARP)
        lines = total_traffic.select(kernel=entry.kernel)
        counts = block_counts(code, lines, warps)
        for basic_block, count in zip(code.blocks, counts, strict=True):
            size = sum(basic_block.classes.values())
            all_instructions += size
            known_instructions += size if count else 0
            for name, class_count in basic_block.classes.items():
                classes[name] += class_count * count
            for name, block_flops in basic_block.product_flops.items():
                flops[name] += block_flops * count
        for name, min_count in _instructions_of_split_lines(code, lines, counts).items():
            classes[name] += min_count
    return ExecutedInstructions(
        dict(classes), dict(flops), APPROXIMATE, known_instructions / all_instructions if all_instructions else 0.0
    )


def block_counts(code: MachineCode, lines: Iterable[LineTraffic], warps: int) -> list[float]:
    """Return how often warps execute each basic block, at least; 0 for blocks whose executions are not known."""
    blocks = code.blocks
    counts = [0.0] * len(blocks)
    for position, access_counts in _counts_of_accesses(blocks, lines).items():
        counts[position] = min(access_counts)
    if blocks:
        counts[0] = max(counts[0], float(warps)) if not blocks[0].before else counts[0]
    for index, basic_block in enumerate(blocks):
        if not basic_block.in_loop:
            counts[index] = min(counts[index], float(warps))
    # A warp that executes a block outside of loops has passed all blocks that lie on every way to it.
    for index, dominators in enumerate(_dominators(blocks)):
        if not blocks[index].in_loop:
            for other in dominators:
                counts[other] = max(counts[other], counts[index])
    _propagate_counts(blocks, counts, warps)
    return counts


def _dominators(blocks: Sequence[BasicBlock]) -> list[set[int]]:
    """Return for each block the set of blocks on every path from the start to it, itself included."""
    all_blocks = set(range(len(blocks)))
    dominators = [{0} if index == 0 else set(all_blocks) for index in range(len(blocks))]
    changed = True
    while changed:
        changed = False
        for index, basic_block in enumerate(blocks[1:], start=1):
            incoming = [dominators[other] for other in basic_block.before]
            new = ({index} | set.intersection(*incoming)) if incoming else {index}
            if new != dominators[index]:
                dominators[index] = new
                changed = True
    return dominators


def _counts_of_accesses(blocks: Sequence[BasicBlock], lines: Iterable[LineTraffic]) -> dict[int, list[float]]:
    """Return the executions of each block by the accesses of lines whose instructions are all in that block.

    If a block has accesses without a predicate, only these are used: a warp whose lanes are all switched off makes no
    request.
    """
    unconditional: dict[int, list[float]] = {}
    conditional: dict[int, list[float]] = {}
    for name, line_key, requests in _requests(blocks, lines):
        copies = {
            index: _instruction_count(basic_block.accesses, line_key, name) for index, basic_block in enumerate(blocks)
        }
        conditional_copies = {
            index: _instruction_count(basic_block.conditional, line_key, name)
            for index, basic_block in enumerate(blocks)
        }
        block_indices = {
            index for counts in (copies, conditional_copies) for index, copy_count in counts.items() if copy_count
        }
        if len(block_indices) != 1:
            continue
        (index,) = block_indices
        count = requests / (copies[index] + conditional_copies[index])
        (conditional if conditional_copies[index] else unconditional).setdefault(index, []).append(count)
    return {**conditional, **unconditional}


def _requests(blocks: Sequence[BasicBlock], lines: Iterable[LineTraffic]) -> list[tuple[str, str, int]]:
    """Return opcode, line and requests of each line's loads and stores; lines are written as in the machine code.

    Lines are left out whose instructions have other widths than their accesses: their requests are not those counted.
    """
    requests_by_access: Counter[tuple[str, str]] = Counter()
    widths: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    compiled: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for basic_block in blocks:
        for accesses in (basic_block.accesses, basic_block.conditional):
            for line_key, counts in accesses.items():
                for key in counts:
                    name, _, bits = key.partition(".")
                    compiled[name, line_key].add(int(bits) // 8)
    for entry in lines:
        opcode = INSTRUCTIONS.get((entry.space, entry.kind))
        if opcode and entry.line:
            is_kernel_file = entry.file.endswith(KERNEL_SUFFIX)
            access_key = opcode, str(entry.line) if is_kernel_file else f"{PurePath(entry.file).name}:{entry.line}"
            requests_by_access[access_key] += entry.requests
            widths[access_key].add(entry.width)
    return [
        (*access_key, requests)
        for access_key, requests in requests_by_access.items()
        if requests and widths[access_key] == compiled[access_key]
    ]


def _instruction_count(accesses: Mapping[str, Mapping[str, int]], line_key: str, name: str) -> int:
    """Return how many instructions with an opcode a block has for a line."""
    return sum(copies for key, copies in accesses.get(line_key, {}).items() if key.partition(".")[0] == name)


def _propagate_counts(blocks: Sequence[BasicBlock], counts: list[float], warps: int) -> None:
    """Raise the counts of blocks to those of neighbours that run only together with them."""
    for _ in blocks:
        changed = False
        for index, basic_block in enumerate(blocks):
            min_count = counts[index]
            for other in basic_block.before:
                if blocks[other].after == (index,):
                    min_count = max(min_count, counts[other])
            for other in basic_block.after:
                if other != OUTSIDE_KERNEL and blocks[other].before == (index,):
                    min_count = max(min_count, counts[other])
            if not basic_block.in_loop:
                min_count = min(min_count, float(warps))
            if min_count > counts[index]:
                counts[index] = min_count
                changed = True
        if not changed:
            return


def _instructions_of_split_lines(
    code: MachineCode, lines: Iterable[LineTraffic], counts: Sequence[float]
) -> dict[str, float]:
    """Return instructions by class, at least, of blocks that share a line's accesses, such as an unrolled loop and its
    rest.

    Only lines are used whose blocks have no count yet, and no block is used twice.
    """
    result: defaultdict[str, float] = defaultdict(float)
    counted_blocks = {index for index, count in enumerate(counts) if count}
    for name, line_key, requests in sorted(_requests(code.blocks, lines), key=lambda entry: -entry[2]):
        copies = {
            index: _instruction_count(basic_block.accesses, line_key, name)
            + _instruction_count(basic_block.conditional, line_key, name)
            for index, basic_block in enumerate(code.blocks)
        }
        block_indices = [index for index, copy_count in copies.items() if copy_count]
        if len(block_indices) < 2 or counted_blocks & set(block_indices):
            continue
        counted_blocks |= set(block_indices)
        instruction_classes = {
            instruction_class for index in block_indices for instruction_class in code.blocks[index].classes
        }
        for instruction_class in instruction_classes:
            result[instruction_class] += requests * min(
                code.blocks[index].classes.get(instruction_class, 0) / copies[index] for index in block_indices
            )
    return result
