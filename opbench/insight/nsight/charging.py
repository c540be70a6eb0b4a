"""Charge the samples of waiting instructions to the instructions that they wait for.

The profiler samples the instruction that cannot issue; the cause is an earlier one. The rules, by reason of the wait:

- long or short scoreboard: the last writer of a register that the instruction reads, among loads and other
  instructions of variable latency. On several paths to the instruction, samples are split by how often each writer was
  executed. `DEPBAR` waits for copies to shared memory: the last `LDGSTS` of the group that must be complete. If no
  writer has variable latency, the wait is for an instruction that still has to read a register which this one
  overwrites.
- every wait at `WARPGROUP.DEPBAR`, which the profiler calls barrier on an H100: the last `wgmma` of the group that must
  be complete.
- barrier, membar, sleeping, warpgroup arrive: the last instruction of that kind, because the profiler samples the
  instruction after it.
- branch resolving: the jump before. drain: the last store before the end of the thread.
- all other reasons: the instruction itself. A queue or unit is full, or the previous instruction has a fixed latency.
  An mbarrier is filled by another thread or by the copy engine, so its wait stays with the `SYNCS` instruction that
  tests it.

At which instruction an H100 samples each reason was read from reports of six kernels.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from opbench.insight.nsight.operands import Operands, opcodes, read_operands
from opbench.insight.nsight.source_page import SampledInstruction

GLOBAL_LOADS = opcodes("LDG LD LDL ATOM ATOMG TEX TLD TLD4 TXQ TMML TXD SULD SUATOM LDGSTS")
"""Instructions that the long scoreboard waits for."""
SHARED_AND_SPECIAL = opcodes(
    "LDS LDSM ATOMS MUFU F2I I2F F2F FRND I2I SHFL S2R S2UR VOTE MATCH REDUX CREDUX POPC FLO BREV UPOPC UFLO UBREV LDC "
    "SYNCS B2R R2UR DADD DMUL DFMA DSETP DMMA LDTM UBLKCP UTMALDG UTMASTG UTMAREDG UCGABAR_WAIT ELECT"
)
"""Instructions that the short scoreboard waits for: shared memory, shuffles, special functions, conversions."""
VARIABLE_LATENCY = GLOBAL_LOADS | SHARED_AND_SPECIAL
STORES = opcodes("STG ST STL RED REDG SUST SURED UTMASTG UTMAREDG")
PRODUCTS = opcodes("HGMMA IGMMA QGMMA BGMMA")
COPIES = opcodes("LDGSTS")
BULK_STORES = opcodes("UTMASTG UTMAREDG UBLKCP UBLKRED")

AT_DEPBAR = ("barrier", "gmma", "long_scoreboard", "short_scoreboard")
SAMPLED_AFTER: Mapping[str, tuple[frozenset[str], str]] = {
    "barrier": (opcodes("BAR"), ""),
    "membar": (opcodes("MEMBAR ERRBAR FENCE CCTL"), ""),
    "sleeping": (opcodes("NANOSLEEP YIELD"), ""),
    "warpgroup_arrive": (opcodes("WARPGROUP"), ".ARRIVE"),
}
"""Reasons that are sampled after the instruction that waits: its opcodes, and a modifier that its opcode must have."""
JUMPS = opcodes("BRA BRX BRXU JMP JMX CALL RET BSYNC EXIT WARPSYNC")

MAX_VISITED = 20_000
"""The most instructions that a search visits; a longer search ends with the causes found so far."""
PATH_ENDS = opcodes("EXIT RET BRA JMP BRX BRXU JMX KILL")

_TARGET = re.compile(r"(?:^|[\s,(])(0x[0-9a-f]+)\)?\s*$")


@dataclass(frozen=True)
class Charge:
    """Samples at one instruction, for one reason, that are charged to the instruction that causes the wait."""

    waiting: int
    """Index of the instruction at which warps wait."""
    cause: int
    """Index of the instruction that they wait for."""
    reason: str
    samples: int
    rule: str
    """A key of `RULES`."""


RULES: Mapping[str, str] = {
    "itself": "the wait belongs to the instruction itself",
    "register": "the last writer of a register that the instruction reads",
    "copies": "the last copy to shared memory that DEPBAR waits for",
    "product": "the last matrix product that the instruction waits for",
    "before": "the barrier, fence or sleep before the instruction that was sampled",
    "jump": "the jump before the instruction that was sampled",
    "overwritten": "the last reader of a register that the instruction overwrites",
    "stores": "the last store before the end",
    "unknown": "no instruction of variable latency was seen before: charged to itself",
}


@dataclass(frozen=True)
class _Code:
    """A kernel's instructions, the operands of each, and the instructions that may run before each."""

    instructions: Sequence[SampledInstruction]
    operands: Sequence[Operands]
    before: Sequence[tuple[int, ...]]
    """Indices of the instructions that can execute directly before each."""


def charge_samples(instructions: Sequence[SampledInstruction]) -> list[Charge]:
    """Charge all samples of a kernel; the sum of all charges equals the sum of all samples."""
    code = _code_of(instructions)
    charges = []
    for index, instruction in enumerate(instructions):
        for reason, samples in instruction.samples.items():
            causes, rule = _causes(code, index, reason)
            weights = [instructions[cause].executed for cause in causes]
            for cause, cause_samples in zip(causes, apportion(samples, weights), strict=True):
                if cause_samples:
                    charges.append(Charge(index, cause, reason, cause_samples, rule))
    return charges


def apportion(samples: int, weights: Sequence[int]) -> list[int]:
    """Split samples into whole numbers in proportion to weights, equally if all are 0; the sum is exact."""
    weights = weights if sum(weights) else [1] * len(weights)
    exact_parts = [samples * weight / sum(weights) for weight in weights]
    parts = [int(part) for part in exact_parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: parts[index] - exact_parts[index])
    for index in by_remainder[: samples - sum(parts)]:
        parts[index] += 1
    return parts


def _causes(code: _Code, index: int, reason: str) -> tuple[list[int], str]:
    """Return the indices of the instructions that an instruction waits for, and a key of `RULES`."""
    operands = code.operands[index]
    if operands.base == "WARPGROUP" and ".DEPBAR" in operands.opcode and reason in AT_DEPBAR:
        causes = _last_instructions(code, index, PRODUCTS, _ends_product_group, _pending_groups(operands))
        return (causes, "product") if causes else ([index], "unknown")
    if reason == "gmma" and operands.base not in PRODUCTS:
        causes = _last_instructions(code, index, PRODUCTS, lambda _: False, 0)
        return (causes, "product") if causes else ([index], "itself")
    after_end = index > 0 and code.operands[index - 1].base == "EXIT"
    if reason == "drain":
        causes = _last_instructions(code, index - after_end, STORES, lambda _: False, 0)
        return (causes, "stores") if causes else ([index], "itself")
    if reason == "branch_resolving":
        jumps = (
            [index - 1]
            if after_end
            else [previous for previous in code.before[index] if code.operands[previous].base in JUMPS]
        )
        return (jumps, "jump") if jumps else ([index], "itself")
    if reason in SAMPLED_AFTER:
        searched_opcodes, modifier = SAMPLED_AFTER[reason]
        causes = _last_instructions(code, index, searched_opcodes, lambda _: False, 0, modifier)
        return (causes, "before") if causes else ([index], "itself")
    if reason in ("long_scoreboard", "short_scoreboard"):
        return _scoreboard_causes(code, index, reason)
    return [index], "itself"


def _scoreboard_causes(code: _Code, index: int, reason: str) -> tuple[list[int], str]:
    """Return the indices of the instructions of variable latency that an instruction waits for, and a key of
    `RULES`.
    """
    operands = code.operands[index]
    if operands.base == "DEPBAR":
        causes = _last_instructions(
            code, index, COPIES, lambda instruction: instruction.base == "LDGDEPBAR", _pending_groups(operands)
        )
        causes = causes or _last_instructions(
            code, index, BULK_STORES, lambda instruction: instruction.base == "UTMACMDFLUSH", _pending_groups(operands)
        )
        return (causes, "copies") if causes else ([index], "unknown")
    opcode_sets = (
        (GLOBAL_LOADS, VARIABLE_LATENCY) if reason == "long_scoreboard" else (SHARED_AND_SPECIAL, VARIABLE_LATENCY)
    )
    for searched_opcodes in opcode_sets:
        # An instruction in between that reads the register has waited already; its operands may be read too widely.
        for first_reader in (True, False):
            if causes := _writers(code, index, operands.reads, searched_opcodes, first_reader):
                return causes, "register"
    for searched_opcodes in (GLOBAL_LOADS | STORES, VARIABLE_LATENCY | STORES | {"STS", "STSM"}):
        if causes := _readers(code, index, operands.writes, searched_opcodes):
            return causes, "overwritten"
    # A load may also wait for an earlier load into the same register.
    if causes := _writers(code, index, operands.writes, VARIABLE_LATENCY, first_reader=True):
        return causes, "register"
    return [index], "unknown"


def _pending_groups(operands: Operands) -> int:
    """Return how many groups may still be incomplete after a DEPBAR, such as 2 for "DEPBAR.LE SB0, 0x2"."""
    last_operand = operands.text.rpartition(",")[2].strip()
    try:
        return int(last_operand, 0)
    except ValueError:
        return 0


def _ends_product_group(operands: Operands) -> bool:
    """Return whether an instruction is the last matrix product of a group."""
    return operands.base in PRODUCTS and "gsb0" in operands.text


# Control flow -----------------------------------------------------------------------------------------------------


def _code_of(instructions: Sequence[SampledInstruction]) -> _Code:
    """Return the instructions of a kernel with their operands and control flow."""
    operands = [read_operands(instruction.text) for instruction in instructions]
    first = instructions[0].address if instructions else 0
    index_of = {instruction.address: index for index, instruction in enumerate(instructions)}
    before: list[list[int]] = [[] for _ in instructions]
    for index, operand in enumerate(operands):
        target = _jump_target_index(operand, first, index_of)
        if target is not None:
            before[target].append(index)
        falls_through = operand.base not in PATH_ENDS or operand.predicate not in ("", "@PT") or _has_condition(operand)
        if falls_through and index + 1 < len(operands):
            before[index + 1].append(index)
    return _Code(instructions, operands, [tuple(dict.fromkeys(predecessors)) for predecessors in before])


def _has_condition(operands: Operands) -> bool:
    """Return whether a branch has a condition as operand, such as "BRA P1, 0x80" or "BRA.U UP0, 0x80"."""
    return operands.base == "BRA" and (re.match(r"^!?U?P\d", operands.text) is not None or ".DIV" in operands.opcode)


def _jump_target_index(operands: Operands, first: int, index_of: Mapping[int, int]) -> int | None:
    """Return the index of a jump's target; None if there is none or it lies elsewhere."""
    if operands.base not in ("BRA", "JMP", "CALL"):
        return None
    match = _TARGET.search(operands.text)
    if match is None:
        return None
    address = int(match[1], 16)
    return index_of.get(address, index_of.get(first + address))


# Searches backwards -----------------------------------------------------------------------------------------------


def _writers(
    code: _Code, index: int, registers: Iterable[str], searched_opcodes: frozenset[str], first_reader: bool
) -> list[int]:
    """Return, for each path to an instruction, the last writer of one of the registers, if its opcode is among the
    searched.

    With `first_reader`, the search for a register ends at an earlier instruction that reads it.
    """
    result: dict[int, None] = {}

    def visit(position: int, registers_left: frozenset[str]) -> frozenset[str]:
        instruction = code.operands[position]
        written_registers = instruction.writes & registers_left
        if not written_registers:
            return registers_left - instruction.reads if first_reader else registers_left
        conditional = instruction.predicate not in ("", "@PT", "@UPT")
        if instruction.base in searched_opcodes:
            result[position] = None
            # The other branch may load the same register.
            return written_registers if conditional else frozenset()
        if first_reader:
            registers_left -= instruction.reads
        return registers_left if conditional else registers_left - written_registers

    _visit_backwards(code, index, frozenset(registers), visit)
    return list(result)


def _readers(code: _Code, index: int, registers: Iterable[str], searched_opcodes: frozenset[str]) -> list[int]:
    """Return, for each path to an instruction, the last one with a searched opcode that reads one of the registers."""
    result: dict[int, None] = {}

    def visit(position: int, registers_left: frozenset[str]) -> frozenset[str]:
        instruction = code.operands[position]
        if instruction.base in searched_opcodes and instruction.reads & registers_left:
            result[position] = None
            return frozenset()
        return registers_left - instruction.writes

    _visit_backwards(code, index, frozenset(registers), visit)
    return list(result)


def _last_instructions(
    code: _Code,
    index: int,
    searched_opcodes: frozenset[str],
    ends_group: Callable[[Operands], bool],
    pending: int,
    modifier: str = "",
) -> list[int]:
    """Return, for each path to an instruction, the last one with a searched opcode in a complete group.

    The last `pending` groups may be incomplete and are passed over; if the code has no groups, any instruction counts.
    The opcode must contain `modifier`; instructions that only arrive at a barrier do not count.
    """
    result: dict[int, None] = {}
    grouped = any(ends_group(operand) for operand in code.operands)

    def visit(position: int, groups: int) -> int | None:
        instruction = code.operands[position]
        groups = min(groups + ends_group(instruction), pending + 1)
        matches = (
            instruction.base in searched_opcodes and modifier in instruction.opcode and ".ARV" not in instruction.opcode
        )
        if matches and (groups > pending or not grouped):
            result[position] = None
            return None
        return groups

    _visit_backwards(code, index, 0, visit)
    return list(result)


State = TypeVar("State", bound=Hashable)


def _visit_backwards(code: _Code, index: int, state: State, visit: Callable[[int, State], State | None]) -> None:
    """Visit the instructions before one on all paths, the nearest first.

    `visit` returns the state for the instructions before; a path ends where it returns None or an empty set.
    """
    queue = deque((position, state) for position in code.before[index])
    visited = set(queue)
    while queue and len(visited) < MAX_VISITED:
        position, current = queue.popleft()
        remaining = visit(position, current)
        if remaining is None or remaining == frozenset():
            continue
        for earlier in code.before[position]:
            if (earlier, remaining) not in visited:
                visited.add((earlier, remaining))
                queue.append((earlier, remaining))
