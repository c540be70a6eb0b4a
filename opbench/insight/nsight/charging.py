"""Charges the samples of waiting instructions to the instructions that they wait for.

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
VARIABLE = GLOBAL_LOADS | SHARED_AND_SPECIAL
STORES = opcodes("STG ST STL RED REDG SUST SURED UTMASTG UTMAREDG")
PRODUCTS = opcodes("HGMMA IGMMA QGMMA BGMMA")
COPIES = opcodes("LDGSTS")
BULK_STORES = opcodes("UTMASTG UTMAREDG UBLKCP UBLKRED")

AT_DEPBAR = ("barrier", "gmma", "long_scoreboard", "short_scoreboard")
BEFORE: Mapping[str, tuple[frozenset[str], str]] = {
    "barrier": (opcodes("BAR"), ""),
    "membar": (opcodes("MEMBAR ERRBAR FENCE CCTL"), ""),
    "sleeping": (opcodes("NANOSLEEP YIELD"), ""),
    "warpgroup_arrive": (opcodes("WARPGROUP"), ".ARRIVE"),
}
"""Reasons that are sampled after the instruction that waits, with its opcodes and a modifier that it must have."""
JUMPS = opcodes("BRA BRX BRXU JMP JMX CALL RET BSYNC EXIT WARPSYNC")

STEPS = 20_000
"""Most instructions that one search looks at; a search that reaches it charges to the writers that it has."""
ENDS = opcodes("EXIT RET BRA JMP BRX BRXU JMX KILL")

_TARGET = re.compile(r"(?:^|[\s,(])(0x[0-9a-f]+)\)?\s*$")


@dataclass(frozen=True)
class Charge:
    """Samples of one instruction and reason that are charged to an instruction."""

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
    instructions: Sequence[SampledInstruction]
    operands: Sequence[Operands]
    before: Sequence[tuple[int, ...]]
    """Indices of the instructions that can execute directly before each."""


def charge(instructions: Sequence[SampledInstruction]) -> list[Charge]:
    """Charge all samples of a kernel; the sum of all charges equals the sum of all samples."""
    code = _code_of(instructions)
    charges = []
    for index, instruction in enumerate(instructions):
        for reason, samples in instruction.samples.items():
            causes, rule = _causes(code, index, reason)
            weights = [instructions[cause].executed for cause in causes]
            for cause, part in zip(causes, apportion(samples, weights), strict=True):
                if part:
                    charges.append(Charge(index, cause, reason, part, rule))
    return charges


def apportion(samples: int, weights: Sequence[int]) -> list[int]:
    """Split samples in proportion to weights, equally if all are 0; the parts are whole and their sum is exact."""
    weights = weights if sum(weights) else [1] * len(weights)
    exact = [samples * weight / sum(weights) for weight in weights]
    parts = [int(part) for part in exact]
    by_rest = sorted(range(len(parts)), key=lambda k: parts[k] - exact[k])
    for k in by_rest[: samples - sum(parts)]:
        parts[k] += 1
    return parts


def _causes(code: _Code, index: int, reason: str) -> tuple[list[int], str]:
    """Return the instructions that one waits for, and the rule."""
    own = code.operands[index]
    if own.base == "WARPGROUP" and ".DEPBAR" in own.opcode and reason in AT_DEPBAR:
        causes = _last_of(code, index, PRODUCTS, _ends_product_group, _pending(own))
        return (causes, "product") if causes else ([index], "unknown")
    if reason == "gmma" and own.base not in PRODUCTS:
        causes = _last_of(code, index, PRODUCTS, lambda _: False, 0)
        return (causes, "product") if causes else ([index], "itself")
    after_end = index > 0 and code.operands[index - 1].base == "EXIT"
    if reason == "drain":
        causes = _last_of(code, index - after_end, STORES, lambda _: False, 0)
        return (causes, "stores") if causes else ([index], "itself")
    if reason == "branch_resolving":
        direct = [index - 1] if after_end else [at for at in code.before[index] if code.operands[at].base in JUMPS]
        return (direct, "jump") if direct else ([index], "itself")
    if reason in BEFORE:
        kind, modifier = BEFORE[reason]
        causes = _last_of(code, index, kind, lambda _: False, 0, modifier)
        return (causes, "before") if causes else ([index], "itself")
    if reason in ("long_scoreboard", "short_scoreboard"):
        return _scoreboard_causes(code, index, reason)
    return [index], "itself"


def _scoreboard_causes(code: _Code, index: int, reason: str) -> tuple[list[int], str]:
    """Return the instructions of variable latency that one waits for, and the rule."""
    own = code.operands[index]
    if own.base == "DEPBAR":
        causes = _last_of(code, index, COPIES, lambda instruction: instruction.base == "LDGDEPBAR", _pending(own))
        causes = causes or _last_of(
            code, index, BULK_STORES, lambda instruction: instruction.base == "UTMACMDFLUSH", _pending(own)
        )
        return (causes, "copies") if causes else ([index], "unknown")
    kinds = (GLOBAL_LOADS, VARIABLE) if reason == "long_scoreboard" else (SHARED_AND_SPECIAL, VARIABLE)
    for kind in kinds:
        # An instruction in between that reads the register has waited already; its operands may be read too widely.
        for first_reader in (True, False):
            if causes := _writers(code, index, own.reads, kind, first_reader):
                return causes, "register"
    for kind in (GLOBAL_LOADS | STORES, VARIABLE | STORES | {"STS", "STSM"}):
        if causes := _readers(code, index, own.writes, kind):
            return causes, "overwritten"
    # A load may also wait for an earlier load into the same register.
    if causes := _writers(code, index, own.writes, VARIABLE, first_reader=True):
        return causes, "register"
    return [index], "unknown"


def _pending(own: Operands) -> int:
    """Return how many groups may still be incomplete, such as 2 for "DEPBAR.LE SB0, 0x2"."""
    last = own.text.rpartition(",")[2].strip()
    try:
        return int(last, 0)
    except ValueError:
        return 0


def _ends_product_group(operands: Operands) -> bool:
    return operands.base in PRODUCTS and "gsb0" in operands.text


# Control flow -----------------------------------------------------------------------------------------------------


def _code_of(instructions: Sequence[SampledInstruction]) -> _Code:
    operands = [read_operands(instruction.text) for instruction in instructions]
    first = instructions[0].address if instructions else 0
    index_of = {instruction.address: index for index, instruction in enumerate(instructions)}
    before: list[list[int]] = [[] for _ in instructions]
    for index, operand in enumerate(operands):
        target = _target(operand, first, index_of)
        if target is not None:
            before[target].append(index)
        goes_on = operand.base not in ENDS or operand.predicate not in ("", "@PT") or _has_condition(operand)
        if goes_on and index + 1 < len(operands):
            before[index + 1].append(index)
    return _Code(instructions, operands, [tuple(dict.fromkeys(some)) for some in before])


def _has_condition(operands: Operands) -> bool:
    """Return whether a branch has a condition as operand, such as "BRA P1, 0x80" or "BRA.U UP0, 0x80"."""
    return operands.base == "BRA" and (re.match(r"^!?U?P\d", operands.text) is not None or ".DIV" in operands.opcode)


def _target(operands: Operands, first: int, index_of: Mapping[int, int]) -> int | None:
    """Return the index of a jump's target; None if there is none or it lies elsewhere."""
    if operands.base not in ("BRA", "JMP", "CALL"):
        return None
    hit = _TARGET.search(operands.text)
    if hit is None:
        return None
    address = int(hit[1], 16)
    return index_of.get(address, index_of.get(first + address))


# Searches backwards -----------------------------------------------------------------------------------------------


def _writers(code: _Code, index: int, registers: Iterable[str], kind: frozenset[str], first_reader: bool) -> list[int]:
    """Return the last writer of one of the registers on each path, if it is of a kind.

    With `first_reader`, a register that an instruction in between reads is not searched further.
    """
    result: dict[int, None] = {}

    def visit(at: int, wanted: frozenset[str]) -> frozenset[str]:
        instruction = code.operands[at]
        written = instruction.writes & wanted
        if not written:
            return wanted - instruction.reads if first_reader else wanted
        conditional = instruction.predicate not in ("", "@PT", "@UPT")
        if instruction.base in kind:
            result[at] = None
            # The other branch may load the same register.
            return written if conditional else frozenset()
        if first_reader:
            wanted -= instruction.reads
        return wanted if conditional else wanted - written

    _walk(code, index, frozenset(registers), visit)
    return list(result)


def _readers(code: _Code, index: int, registers: Iterable[str], kind: frozenset[str]) -> list[int]:
    """Return the last instruction of a kind on each path that reads one of the registers."""
    result: dict[int, None] = {}

    def visit(at: int, wanted: frozenset[str]) -> frozenset[str]:
        instruction = code.operands[at]
        if instruction.base in kind and instruction.reads & wanted:
            result[at] = None
            return frozenset()
        return wanted - instruction.writes

    _walk(code, index, frozenset(registers), visit)
    return list(result)


def _last_of(
    code: _Code,
    index: int,
    kind: frozenset[str],
    ends_group: Callable[[Operands], bool],
    pending: int,
    modifier: str = "",
) -> list[int]:
    """Return the last instruction of a kind on each path, in a group after the `pending` groups that may be incomplete.

    If the code has no groups, the last instruction of the kind is returned. Its opcode must contain `modifier`;
    instructions that only arrive at a barrier do not count.
    """
    result: dict[int, None] = {}
    grouped = any(ends_group(operand) for operand in code.operands)

    def visit(at: int, groups: int) -> int | None:
        instruction = code.operands[at]
        groups = min(groups + ends_group(instruction), pending + 1)
        matches = instruction.base in kind and modifier in instruction.opcode and ".ARV" not in instruction.opcode
        if matches and (groups > pending or not grouped):
            result[at] = None
            return None
        return groups

    _walk(code, index, 0, visit)
    return list(result)


State = TypeVar("State", bound=Hashable)


def _walk(code: _Code, index: int, state: State, visit: Callable[[int, State], State | None]) -> None:
    """Visit the instructions before one on all paths, the nearest first, until `visit` returns None or an empty set."""
    queue = deque((at, state) for at in code.before[index])
    seen = set(queue)
    while queue and len(seen) < STEPS:
        at, searched = queue.popleft()
        left = visit(at, searched)
        if left is None or left == frozenset():
            continue
        for earlier in code.before[at]:
            if (earlier, left) not in seen:
                seen.add((earlier, left))
                queue.append((earlier, left))
