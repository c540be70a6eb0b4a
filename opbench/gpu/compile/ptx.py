"""Read PTX from NVRTC: instructions with their source lines, and pointers to module variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([A-Za-z_$][\w$]*)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:,.*inlined_at\s+(\d+)\s+(\d+))?")
_GLOBAL = re.compile(r"^\s*(?:\.(?:visible|weak|extern|common)\s+)*\.global\s(?P<rest>.*)")
_NAME = re.compile(r"([A-Za-z_$][\w$]*)\s*(?:\[\d*\])*\s*(?:=.*)?;?\s*$")
_SCOPE = re.compile(r"(?<=\s)[{}](?=\s|$)|^\s*[{}]|\$?[\w$]+:(?=\s|$)|\}\s*$")
"""Braces of a scope, which stand alone, unlike those of a vector; and labels."""
_INSTRUCTION = re.compile(r"^(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_WORD = re.compile(r"[%A-Za-z_$][\w$.]*")


@dataclass(frozen=True)
class PtxInstruction:
    """One PTX instruction with its source line."""

    opcode: str
    """The opcode with its modifiers, such as "st.global.f32"."""
    operands: str
    function: str
    file: str
    """The source file of the line; empty if not known."""
    line: int
    called_from: tuple[str, int] = ("", 0)
    """File and line of the call, for a line of an inlined function."""

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Return the registers and names in the operands, the target first."""
        return tuple(_WORD.findall(self.operands))

    @property
    def text(self) -> str:
        """Return the instruction as text."""
        return f"{self.opcode} {self.operands}".strip()


@dataclass(frozen=True)
class Ptx:
    """The instructions and variables in a module's PTX."""

    instructions: tuple[PtxInstruction, ...]
    variables: frozenset[str]
    """Names of `__device__` variables; constants are not included."""
    pointers: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """The module variables that a register may point to, by function and register."""

    def variables_written(self) -> Iterator[tuple[PtxInstruction, str]]:
        """Yield each store or atomic operation that may write a module variable, with the variable's name."""
        for instruction in self.instructions:
            base = instruction.opcode.partition(".")[0]
            if base not in ("st", "atom", "red"):
                continue
            address = instruction.operands.partition("[")[2].partition("]")[0]
            targets_by_register = self.pointers.get(instruction.function, {})
            for word in _WORD.findall(address):
                for name in sorted(targets_by_register.get(word, frozenset()) | ({word} & self.variables)):
                    yield instruction, name


def parse_ptx(text: str) -> Ptx:
    """Read the instructions and variables of a module's PTX."""
    files = {match[1]: match[2] for line in text.splitlines() if (match := _FILE.match(line))}
    instructions: list[PtxInstruction] = []
    variables: set[str] = set()
    function, location, caller, statement = "", ("", 0), ("", 0), ""
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            function, location, caller, statement = match[1], ("", 0), ("", 0), ""
        elif match := _LOC.match(line):
            location = files.get(match[1], ""), int(match[2])
            caller = (files.get(match[3], ""), int(match[4])) if match[3] else ("", 0)
        elif match := _GLOBAL.match(line):
            if name := _NAME.search(match["rest"].partition("=")[0].strip().rstrip(";")):
                variables.add(name[1])
        elif function:
            *complete, statement = _statements(f"{statement} {line.partition('//')[0]}")
            for instruction in complete:
                if match := _INSTRUCTION.match(instruction):
                    operands = " ".join(match[2].split())
                    instructions.append(PtxInstruction(match[1], operands, function, *location, caller))
    return Ptx(tuple(instructions), frozenset(variables), _pointers(instructions, variables))


def _statements(text: str) -> list[str]:
    """Split a text at semicolons into statements without labels; the last one may be incomplete."""
    *complete, rest = _SCOPE.sub(" ", text).split(";")
    return [*(instruction.strip() for instruction in complete), rest]


def _pointers(instructions: list[PtxInstruction], variables: set[str]) -> dict[str, dict[str, frozenset[str]]]:
    """Return the module variables that a register may point to, by function and register.

    Addresses are followed through arithmetic, but not through memory.
    """
    result: dict[str, dict[str, frozenset[str]]] = {}
    by_function: dict[str, list[PtxInstruction]] = {}
    for instruction in instructions if variables else ():
        if instruction.opcode.partition(".")[0] in ("mov", "cvta", "add", "sub", "mad", "selp", "or", "and", "cvt"):
            by_function.setdefault(instruction.function, []).append(instruction)
    for function, moves in by_function.items():
        targets_by_register: dict[str, frozenset[str]] = {}
        changed = True
        while changed:
            changed = False
            for instruction in moves:
                target, *sources = instruction.operand_names or ("",)
                pointed_variables = frozenset(sources) & variables
                for word in sources:
                    pointed_variables |= targets_by_register.get(word, frozenset())
                if not pointed_variables <= targets_by_register.get(target, frozenset()):
                    targets_by_register[target] = targets_by_register.get(target, frozenset()) | pointed_variables
                    changed = True
        result[function] = targets_by_register
    return result
