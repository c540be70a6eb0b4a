"""Read the registers of a SASS instruction from its text, as Nsight Compute or nvdisasm prints it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s*(?:\{\s*)?(?:@(!?U?P\w+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?)\s*;?\s*\}?\s*$")
_REGISTER = re.compile(r"(?<![\w.])(UR|R|UP|P|B)(\d+)\b((?:\.\w+)*)")
_PREDICATE = re.compile(r"^!?U?P(?:\d|T|R)$")
_PLAIN_REGISTER = re.compile(r"^[-|~!]*(UR|R)(\d+|Z)((?:\.\w+)*)\|?$")

MEMORY_WIDTH = re.compile(r"\.(64|128|256)(?=\.|$)")


def opcodes(text: str) -> frozenset[str]:
    """Return the opcodes of a list that is separated by blanks."""
    return frozenset(text.split())


WITHOUT_RESULT = opcodes(
    "ST STG STS STL STSM RED REDG REDS UREDGR BAR BRA BRX BRXU JMP JMX EXIT BSSY BSYNC BREAK NOP MEMBAR DEPBAR "
    "LDGDEPBAR LDGSTS UTMALDG UTMASTG UTMAREDG UTMAPF UTMACMDFLUSH UTMACCTL UBLKCP UBLKPF UBLKRED WARPSYNC CCTL CCTLL "
    "RET CALL ERRBAR KILL YIELD NANOSLEEP WARPGROUP FENCE R2B ACQBULK PREEXIT BPT UCGABAR_ARV UCGABAR_WAIT ARRIVES "
    "SUST SURED BMOV"
)
"""Instructions that write no register."""
WITH_TWO_PREDICATES = opcodes("ISETP FSETP DSETP HSETP2 PSETP PLOP3 UISETP UPLOP3 UPSETP ISETP64")
"""Instructions whose first two operands are the predicates that they write."""
WITH_CARRY_OUT = opcodes("IADD3 UIADD3 IADD LEA ULEA IMAD UIMAD VOTE VOTEU USETMAXREG")
"""Instructions that may write predicates after the register, such as the carry of an addition."""
WITH_REGISTER_PAIRS = opcodes("DADD DMUL DFMA DMNMX CS2R IADD64 UIADD64")
"""Instructions with results of 64 bits whose opcode does not show the width."""


@dataclass(frozen=True)
class Operands:
    """The opcode of one instruction and the registers that it uses, such as "R4", "UR6" and "P0"."""

    predicate: str
    """The predicate that guards the instruction, such as "!P0"; "" without one."""
    opcode: str
    """The opcode with its modifiers."""
    text: str
    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def base(self) -> str:
        """Return the opcode without modifiers."""
        return self.opcode.partition(".")[0]


@functools.lru_cache(maxsize=1 << 16)
def read_operands(text: str) -> Operands:
    """Return the operands of an instruction; RZ, PT and other constants are no registers."""
    match = _INSTRUCTION.match(text)
    if match is None:
        return Operands("", text.strip(), "", frozenset(), frozenset())
    predicate, opcode, operand_text = match[1] or "", match[2], match[3]
    base = opcode.partition(".")[0]
    operands = _split(operand_text)
    results = _result_count(base, opcode, operands)
    writes: set[str] = set()
    reads: set[str] = set()
    for operand in operands[:results]:
        writes |= _registers(operand, _result_width(base, opcode))
    for position, operand in enumerate(operands[results:], start=results):
        reads |= _registers(operand, _source_width(base, opcode, position))
    if base in ("R2P", "P2R", "UP2UR", "UR2UP"):
        predicates = {f"{'U' if base.startswith('U') else ''}P{number}" for number in range(7)}
        (writes if base in ("R2P", "UR2UP") else reads).update(predicates)
    guard = predicate.lstrip("!")
    if guard and guard not in ("PT", "UPT"):
        reads.add(guard)
    return Operands(predicate, opcode, operand_text, frozenset(reads), frozenset(writes))


def _split(text: str) -> list[str]:
    """Split operands at the commas outside of brackets."""
    operands, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        elif character == "," and not depth:
            operands.append(text[start:index].strip())
            start = index + 1
    operands.append(text[start:].strip())
    return [operand for operand in operands if operand]


def _result_count(base: str, opcode: str, operands: list[str]) -> int:
    """Return how many of the first operands are results."""
    if base == "BAR":
        return 1 if ".RED" in opcode and operands and _PREDICATE.match(operands[0]) else 0
    if base in WITHOUT_RESULT or not operands:
        return 0
    if base in WITH_TWO_PREDICATES:
        return min(2, len(operands))
    count = 0
    while count < len(operands) and _PREDICATE.match(operands[count]) and not operands[count].startswith("!"):
        count += 1
        if base in ("VOTE", "VOTEU", "USETMAXREG", "FCHK", "R2P"):
            break  # the predicates after the results are sources
    if base == "R2P":
        return 1
    only_flags = base in ("FCHK", "USETMAXREG") or (count and base in ("VOTE", "VOTEU", "SYNCS"))
    if count < len(operands) and _PLAIN_REGISTER.match(operands[count]) and not only_flags:
        count += 1
    if base in WITH_CARRY_OUT and count and _PLAIN_REGISTER.match(operands[count - 1]):
        while count < len(operands) and _PREDICATE.match(operands[count]) and not operands[count].startswith("!"):
            if base in ("VOTE", "VOTEU") and count == 2:
                break
            count += 1
    return count


def _result_width(base: str, opcode: str) -> int:
    """Return how many registers a result has."""
    if base in ("HGMMA", "IGMMA", "QGMMA", "BGMMA"):
        shape = re.search(r"\.64x(\d+)x", opcode)
        columns = int(shape[1]) if shape else 8
        return columns // 2 if ".F32" in opcode or base == "IGMMA" else max(1, columns // 4)
    if base in ("HMMA", "IMMA", "BMMA", "QMMA", "DMMA"):
        return 2 if re.match(r"HMMA\.\d+\.F16", opcode) or (base == "IMMA" and ".8816" in opcode) else 4
    if base in ("LDSM", "LDTM"):
        return next((int(part) for part in opcode.split(".")[::-1] if part in ("1", "2", "4")), 1)
    return _memory_width(base, opcode)


def _memory_width(base: str, opcode: str) -> int:
    """Return how many registers a result has, by the width in the opcode."""
    if base == "CS2R":
        return 1 if ".32" in opcode else 2
    if base in ("SHF", "USHF"):
        return 1  # SHF.L.U64.HI writes one half
    if base in WITH_REGISTER_PAIRS or ".WIDE" in opcode or re.search(r"\.[FSU]64(?=\.|$)", opcode):
        return 2
    width = MEMORY_WIDTH.search(opcode)
    return int(width[1]) // 32 if width else 1


def _source_width(base: str, opcode: str, position: int) -> int:
    """Return how many registers a source operand has; addresses show themselves whether they have 64 bits."""
    if base in ("ST", "STG", "STS", "STL", "ATOM", "ATOMG", "ATOMS", "RED", "REDG"):
        return _memory_width(base, opcode)
    if base == "STSM":
        return _result_width("LDSM", opcode)
    if base in ("HMMA", "HGMMA", "IMMA", "QMMA", "IGMMA", "QGMMA"):
        return {1: 4, 2: 2, 3: 4}.get(position, 1)
    if base in WITH_REGISTER_PAIRS:
        return 2
    if ".WIDE" in opcode and position >= 3:
        return 2
    return 1


def _registers(operand: str, width: int) -> set[str]:
    """Return the registers of an operand; those of an address have 64 bits only with the suffix .64."""
    result = set()
    address = "[" in operand
    for register_class, number, suffix in _REGISTER.findall(operand):
        if register_class == "B":
            continue
        count = 1 if register_class in ("P", "UP") else 2 if ".64" in suffix else width
        if address and ".64" not in suffix:
            count = 2 if "desc[" in operand and register_class == "UR" else 1  # a descriptor has 64 bits
        result |= {f"{register_class}{int(number) + offset}" for offset in range(count)}
    return result
