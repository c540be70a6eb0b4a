"""The text pass between preprocessor and compiler: `#pragma unroll`, `__noinline__`, initialisers, inline PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opbench.emulator.instructions import UnknownInstruction, translate
from opbench.emulator.toolchain import INCLUDE

UNROLL_WITHOUT_COUNT = 8
"""GCC unrolls loops of unknown length by the full count that it is told, so a bare `#pragma unroll` stays moderate: 8
still turns register tiles into registers, and compiles in half the time of 16."""

ASM = re.compile(r"(?<![\w$])(?:asm|__asm__|__asm)\b\s*(?:\b(?:volatile|__volatile__)\b\s*)?\(")
LINE_MARKER = re.compile(r'^#\s+(\d+)\s+"((?:[^"\\]|\\.)*)"([ \d]*)', re.MULTILINE)
SYSTEM_HEADER = "3"
"""The flag of a line marker that says so; the shim counts as one."""
NOINLINE = re.compile(r"\b__noinline__\b")
UNROLL = re.compile(r"^([ \t]*)#[ \t]*pragma[ \t]+unroll\b[ \t]*(.*)$", re.MULTILINE)
CONSTANT_INITIALISATION = re.compile(
    r'(\bextern\s+(?:#\s+\d+\s+"[^"\n]*"[ \d]*\s+)*)?__attribute__\(\(require_constant_initialization\)\)'
)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
BRACKET = re.compile(STRING.pattern + r"|[()\[\]{}]")
SEPARATED_BY = {separator: re.compile(f"{BRACKET.pattern}|{separator}") for separator in (":", ",")}
CONSTRAINT = re.compile(r"\s*(?:\[\w+\]\s*)?\"[^\"]*\"\s*\(")
KEEP_ORDER = '__asm__ volatile("" ::: "memory");'
INNER_MARKER = re.compile(r'\n#\s+\d+\s+"[^"\n]*"[ \d]*\n\s*')
"""A macro of the shim inside an operand, such as threadIdx, brings line markers with it."""

CONSTANT = re.compile(r"__attribute__\(\(opb_constant\)\)")


PTX_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
PTX_BEFORE_OPCODE = re.compile(r"^(?:\s*(?:[{}]|[$\w]+\s*:(?!:)|@!?[%$\w]+\s))+")
"""Braces, labels and the guard in front of an instruction."""


class UnsupportedInstruction(Exception):
    """Inline PTX that the cpu backend has no function for."""

    def __init__(self, instruction: str, file: str, line: int) -> None:
        self.message = f"inline PTX '{instruction}' is not known to the cpu backend"
        super().__init__(f"{file}:{line}: {self.message}")
        self.instruction = instruction
        self.file = file
        self.line = line


@dataclass(frozen=True)
class Statement:
    """One asm statement: where it lies in the text, its template and its operands' expressions."""

    start: int
    end: int
    template: str
    operands: tuple[str, ...]


def replace_unroll(text: str, macros: Mapping[str, str]) -> str:
    """Tell GCC what `#pragma unroll` tells nvcc; the number of lines stays."""

    def replacement(match: re.Match[str]) -> str:
        argument = match.group(2).strip().strip("()").strip()
        count = macros.get(argument, argument)
        factor = int(count) if count.isdigit() else UNROLL_WITHOUT_COUNT
        return f"{match.group(1)}#pragma GCC unroll {min(factor, 1024)}"

    return UNROLL.sub(replacement, text)


def relax_initialisation(text: str) -> str:
    """Demand constant initialisation of `extern` arrays only, where it spares a wrapper at each use.

    The vectors of clang's traced builds copy themselves, hence have no constant initialiser in its eyes.
    """
    return CONSTANT_INITIALISATION.sub(lambda match: match.group() if match.group(1) else "", text)


def replace_noinline(text: str) -> str:
    """CUDA's keyword as an attribute, except where it stands within an attribute already."""

    def replacement(match: re.Match[str]) -> str:
        before = text[max(0, match.start() - 80) : match.start()].rstrip()[-1:]
        return match.group() if before in {"(", ","} else "__attribute__((noinline))"

    pieces, position = [], 0
    for match in outside_strings(NOINLINE, text):
        pieces += [text[position : match.start()], replacement(match)]
        position = match.end()
    return "".join(pieces) + text[position:]


def replace_built_in_copies(text: str, names: Sequence[str]) -> str:
    """Call `::memcpy` and the like in place of the compiler's built-in forms, which a traced build does not see."""
    pieces, position = [], 0
    for match in re.finditer(rf"(?:::\s*)?\b__builtin_({'|'.join(names)})\b(?=\s*\()", text):
        marker = _marker_before(text, match.start())
        if marker is None or not marker.group(2).startswith(str(INCLUDE)):
            pieces += [text[position : match.start()], f"::{match.group(1)}"]
            position = match.end()
    return "".join(pieces) + text[position:]


def constant_variables(text: str) -> list[str]:
    """Return the names of the `__constant__` variables that preprocessed text declares."""
    names: list[str] = []
    for match in CONSTANT.finditer(text):
        end = re.search(r"[;={]", text[match.end() :])
        declaration = text[match.end() : match.end() + end.start()] if end else ""
        declaration = re.sub(r"\[[^\]]*\]|<[^<>]*>|#[^\n]*", " ", declaration)
        names += [found[-1] for part in declaration.split(",") if (found := re.findall(r"[A-Za-z_]\w*", part))]
    return sorted(set(names))


def replace_ptx(text: str) -> str:
    """Rewrite every asm statement that holds PTX; raises UnsupportedInstruction. Line numbers stay."""
    pieces: list[str] = []
    position = 0
    for match in outside_strings(ASM, text):
        if match.start() < position or is_in_system_header(text, match.start()):
            continue
        statement = _parse(text, match)
        if not statement.template.strip() and not statement.operands:
            continue
        try:
            # With operands, an empty one keeps the compiler from moving a register over it: a GPU's register.
            statements = translate(statement.template, statement.operands) or KEEP_ORDER
        except UnknownInstruction as unknown:
            raise UnsupportedInstruction(str(unknown), *locate(text, statement.start)) from None
        file, line = locate(text, statement.end)
        ending = "\n" * text.count("\n", statement.start, statement.end)
        if INNER_MARKER.search(text, statement.start, statement.end):
            ending = f'\n# {line} "{file}"\n'
        pieces += [text[position : statement.start], f"({{ {statements} }})", ending]
        position = statement.end
    return "".join(pieces) + text[position:]


def instructions_of(text: str) -> Iterator[tuple[str, int]]:
    """Each instruction of inline PTX outside of system headers, and where its statement begins in the text."""
    for match in outside_strings(ASM, text):
        if is_in_system_header(text, match.start()):
            continue
        statement = _parse(text, match)
        for piece in PTX_COMMENT.sub(" ", statement.template).split(";"):
            if instruction := PTX_BEFORE_OPCODE.sub("", piece).strip():
                yield instruction, statement.start


def outside_strings(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The pattern's matches that begin in no string or character."""
    start = 0
    for match in pattern.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        if match.start() >= start and not LITERAL.sub("", text[line : match.start()]).count('"'):
            start = match.end()
            yield match


def _marker_before(text: str, position: int) -> re.Match[str] | None:
    start = text.rfind("\n# ", 0, position)
    while start >= 0:
        marker = LINE_MARKER.match(text, start + 1)
        if marker is not None:
            return marker
        start = text.rfind("\n# ", 0, start)
    return None


def is_in_system_header(text: str, position: int) -> bool:
    marker = _marker_before(text, position)
    return marker is not None and SYSTEM_HEADER in marker.group(3).split()


def locate(text: str, position: int) -> tuple[str, int]:
    """The file and line that a position of preprocessed text comes from."""
    marker = _marker_before(text, position)
    if marker is None:
        return "", 0
    return marker.group(2), int(marker.group(1)) + text.count("\n", marker.end(), position) - 1


def _parse(text: str, match: re.Match[str]) -> Statement:
    end = _closing(text, match.end())
    sections = _split(text[match.end() : end], ":")
    template = "".join(STRING.findall(sections[0])).replace("\\n", "\n").replace("\\t", " ")
    operands: list[str] = []
    for section in sections[1:3]:
        for operand in _split(section, ","):
            constraint = CONSTRAINT.match(operand)
            if constraint is not None:
                expression = operand[constraint.end() : _closing(operand, constraint.end())]
                operands.append(INNER_MARKER.sub(" ", expression).strip())
    return Statement(match.start(), end + 1, template, tuple(operands))


def _closing(text: str, position: int) -> int:
    """Where the bracket closes that was opened just before `position`."""
    depth = 1
    for found in BRACKET.finditer(text, position):
        if found.group() in OPENING:
            depth += 1
        elif found.group() in CLOSING:
            depth -= 1
            if depth == 0:
                return found.start()
    return len(text)


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of strings and brackets; `::` counts as two colons here, as in the asm grammar."""
    parts, start, depth = [], 0, 0
    for found in SEPARATED_BY[separator].finditer(text):
        if found.group() in OPENING:
            depth += 1
        elif found.group() in CLOSING:
            depth -= 1
        elif found.group() == separator and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]
