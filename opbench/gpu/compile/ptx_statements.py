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
    """Behind the semicolon."""
    guard: str
    """The guarding predicate; empty for none."""
    negated: bool
    opcode: str
    """With its modifiers, such as "st.global.f32"."""
    operands: tuple[str, ...]
    """Split at the commas outside brackets."""
    file: str
    line: int

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """Return the parts of the opcode, split at dots."""
        return frozenset(re.split(r"\.|::", self.opcode))

    @property
    def base(self) -> str:
        """Return the opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def predicate(self) -> str:
        """Return the guard predicate as text before the opcode, with a space; empty without one."""
        return f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""


@dataclass(frozen=True)
class Function:
    """One kernel or device function in PTX."""

    name: str
    is_kernel: bool
    start: int
    """Behind the declarations of registers and shared memory."""
    end: int
    statements: tuple[Statement, ...]
    widths: Mapping[str, int]
    """Bits of the registers by prefix ("%rd") or full name; 1 for a predicate."""
    shared: tuple[str, ...]
    """Names of its variables in shared memory, or of those of the module."""

    def width(self, register: str) -> int:
        """Return the width of a register in bits; 0 if the word is no register."""
        return self.widths.get(register) or self.widths.get(register.rstrip("0123456789"), 0)


@dataclass(frozen=True)
class Module:
    """The functions of a module's PTX."""

    text: str
    functions: tuple[Function, ...]


def registers_of(operand: str) -> tuple[str, ...]:
    """Return the registers and names in an operand."""
    return tuple(_WORD.findall(operand))


def parse_functions(text: str) -> Module:
    """Read the functions of a module and their statements."""
    files = {hit[1]: hit[2] for hit in _FILE.finditer(text)}
    plain = _COMMENT.sub(lambda hit: re.sub(r"[^\n]", " ", hit[0]), text)
    # A declaration ends with a semicolon and has no body.
    bodies = [
        (hit, opening, _closing(plain, opening))
        for hit in _FUNCTION.finditer(plain)
        if (opening := plain.find("{", hit.end())) >= 0 and ";" not in plain[hit.end() : opening]
    ]
    outside, at = "", 0
    for _, opening, end in bodies:
        outside, at = outside + plain[at:opening], end
    common = tuple(_SHARED.findall(outside + plain[at:]))
    functions = []
    for hit, opening, end in bodies:
        body = plain[opening + 1 : end]
        declared = _DECLARATIONS.match(plain, opening + 1, end)
        start = declared.end() if declared else opening + 1
        statements = tuple(_statements(plain, opening + 1, end, files))
        shared = (*dict.fromkeys(_SHARED.findall(body)), *common)
        functions.append(Function(hit[2], hit[1] == "entry", start, end, statements, _widths(body), shared))
    return Module(text, tuple(functions))


def _closing(text: str, opening: int) -> int:
    """Return the position of the brace that closes a function."""
    depth = 0
    for hit in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if hit[0] == "{" else -1
        if depth == 0:
            return hit.start()
    return len(text)


def _widths(body: str) -> dict[str, int]:
    widths = {}
    for kind, bits, names in _REGISTERS.findall(body):
        for name in names.split(","):
            widths[name.strip().partition("<")[0]] = 1 if kind == "pred" else int(bits or 32)
    return widths


def _statements(text: str, start: int, end: int, files: Mapping[str, str]) -> Iterator[Statement]:
    file, line, at = "", 0, start
    while at < end:
        lead = _LEAD.match(text, at)
        at = lead.end() if lead else at
        if at >= end:
            return
        if text.startswith(".loc", at):
            if hit := _LOC.match(text, at):
                file, line = files.get(hit[1], ""), int(hit[2])
            at = text.find("\n", at)
            continue
        stop = text.find(";", at, end)
        if stop < 0:
            return
        if text[at] != "." and (hit := _INSTRUCTION.fullmatch(text[at:stop].strip())):
            operands = tuple(_split(" ".join(hit[4].split())))
            yield Statement(at, stop + 1, hit[2] or "", bool(hit[1]), hit[3], operands, file, line)
        at = stop + 1


def _split(operands: str) -> Iterator[str]:
    """Yield the operands of an instruction."""
    depth, start = 0, 0
    for index, sign in enumerate(operands):
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0:
            yield operands[start:index].strip()
            start = index + 1
    if rest := operands[start:].strip():
        yield rest
