"""Split PTX into statements with their positions in the text, so that single instructions can be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_FUNCTION = re.compile(r"^[ \t]*(?:\.(?:visible|weak)\s+)*\.(entry|func)\b(?:\s*\([^)]*\))?\s*([A-Za-z_$][\w$]*)", re.M)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"[ \t]*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:,[^\n]*inlined_at\s+(\d+)\s+(\d+))?")
_LEAD = re.compile(r"(?:\s+|[{}]|\$?[\w$]+:(?!:))*")
"""Braces of a scope and labels, which may precede an instruction on its line."""
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_WORD = re.compile(r"[%A-Za-z_$][\w$.]*")
_REGISTERS = re.compile(r"\.reg\s+\.([a-z]+)(\d*)\s+([^;]*);")
_DECLARATIONS = re.compile(r"(?:\s*\.(?:reg|shared|local)\b[^;]*;|\s*\.loc\b[^\n]*\n)*")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+\d+\s+)?\.[a-z]+\d+\s+([A-Za-z_$][\w$]*)")


@dataclass(frozen=True)
class Statement:
    """One instruction with its position in the PTX and its source line."""

    start: int
    end: int
    """The position after the semicolon."""
    guard: str
    """The guarding predicate; empty for none."""
    negated: bool
    opcode: str
    """The opcode with its modifiers, such as "st.global.f32"."""
    operands: tuple[str, ...]
    """The operands, such as "%r1" or "[%rd4+8]"."""
    file: str
    line: int

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """Return the words of the opcode, such as "st", "global" and "f32"."""
        return frozenset(re.split(r"\.|::", self.opcode))

    @property
    def base(self) -> str:
        """Return the opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def predicate(self) -> str:
        """Return the guard predicate as text before the opcode, with a space; empty without one."""
        return f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""

    @property
    def text(self) -> str:
        """Return the instruction as PTX."""
        return f"{self.predicate}{self.opcode} {', '.join(self.operands)};"


@dataclass(frozen=True)
class Function:
    """One kernel or device function in PTX."""

    name: str
    is_kernel: bool
    start: int
    """The position after the declarations of registers and shared memory."""
    end: int
    statements: tuple[Statement, ...]
    widths: Mapping[str, int]
    """Bits of the registers by prefix ("%rd") or full name; 1 for a predicate."""
    shared: tuple[str, ...]
    """Names of the variables in shared memory that the function declares, and of those of the module."""

    def width(self, register: str) -> int:
        """Return the width of a register in bits; 0 if the word is no register."""
        return self.widths.get(register) or self.widths.get(register.rstrip("0123456789"), 0)


@dataclass(frozen=True)
class Module:
    """The PTX text of a module with its functions."""

    text: str
    functions: tuple[Function, ...]


def registers_of(operand: str) -> tuple[str, ...]:
    """Return the names in an operand: registers, or variables of the module."""
    return tuple(_WORD.findall(operand))


def parse_functions(text: str) -> Module:
    """Read the functions of a module and their statements."""
    files = {match[1]: match[2] for match in _FILE.finditer(text)}
    text_without_comments = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    # A declaration ends with a semicolon and has no body.
    bodies = [
        (match, opening, _closing(text_without_comments, opening))
        for match in _FUNCTION.finditer(text_without_comments)
        if (opening := text_without_comments.find("{", match.end())) >= 0
        and ";" not in text_without_comments[match.end() : opening]
    ]
    text_outside, position = "", 0
    for _, opening, end in bodies:
        text_outside, position = text_outside + text_without_comments[position:opening], end
    module_shared = tuple(_SHARED.findall(text_outside + text_without_comments[position:]))
    functions = []
    for match, opening, end in bodies:
        body = text_without_comments[opening + 1 : end]
        declarations = _DECLARATIONS.match(text_without_comments, opening + 1, end)
        start = declarations.end() if declarations else opening + 1
        statements = tuple(_statements(text_without_comments, opening + 1, end, files))
        shared = (*dict.fromkeys(_SHARED.findall(body)), *module_shared)
        functions.append(Function(match[2], match[1] == "entry", start, end, statements, _widths(body), shared))
    return Module(text, tuple(functions))


def _closing(text: str, opening: int) -> int:
    """Return the position of the brace that closes a function."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


def _widths(body: str) -> dict[str, int]:
    """Return the bits of the registers that a function declares, by prefix or name."""
    widths = {}
    for register_type, bits, names in _REGISTERS.findall(body):
        for name in names.split(","):
            widths[name.strip().partition("<")[0]] = 1 if register_type == "pred" else int(bits or 32)
    return widths


def _statements(text: str, start: int, end: int, files: Mapping[str, str]) -> Iterator[Statement]:
    """Yield the instructions of a function body with their positions and source lines."""
    file, line, position = "", 0, start
    while position < end:
        leading = _LEAD.match(text, position)
        position = leading.end() if leading else position
        if position >= end:
            return
        if text.startswith(".loc", position):
            if match := _LOC.match(text, position):
                file, line = files.get(match[1], ""), int(match[2])
            position = text.find("\n", position)
            continue
        stop = text.find(";", position, end)
        if stop < 0:
            return
        if text[position] != "." and (match := _INSTRUCTION.fullmatch(text[position:stop].strip())):
            operands = tuple(_split(" ".join(match[4].split())))
            yield Statement(position, stop + 1, match[2] or "", bool(match[1]), match[3], operands, file, line)
        position = stop + 1


def _split(operands: str) -> Iterator[str]:
    """Yield the operands of an instruction."""
    depth, start = 0, 0
    for index, character in enumerate(operands):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            yield operands[start:index].strip()
            start = index + 1
    if last_operand := operands[start:].strip():
        yield last_operand
