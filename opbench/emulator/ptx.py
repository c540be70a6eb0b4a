"""Rewrite preprocessed text for the host compiler: pragmas, attributes, initialisers and inline PTX."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opbench.emulator.instructions import COMMENT, UnknownInstruction, translate
from opbench.emulator.toolchain import INCLUDE

UNROLL_WITHOUT_COUNT = 8
"""The unroll factor for a `#pragma unroll` without a count. GCC unrolls loops of unknown length by the full factor. A
factor of 8 still puts register tiles into registers and compiles in half the time of 16."""

ASM = re.compile(r"(?<![\w$])(?:asm|__asm__|__asm)\b\s*(?:\b(?:volatile|__volatile__)\b\s*)?\(")
LINE_MARKER = re.compile(r'^#\s+(\d+)\s+"((?:[^"\\]|\\.)*)"([ \d]*)', re.MULTILINE)
SYSTEM_HEADER = "3"
"""The flag of a line marker for text from a system header; the shim is included as one."""
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
"""A line marker inside an operand, which the expansion of a shim macro such as threadIdx inserts."""

CONSTANT = re.compile(r"__attribute__\(\(opb_constant\)\)")


CACHED_STATEMENTS = 1024
"""The number of parsed asm statements that are cached: kernels share those of their headers."""
PTX_BEFORE_OPCODE = re.compile(r"^(?:\s*(?:[{}]|[$\w]+\s*:(?!:)|@!?[%$\w]+\s))+")
"""Braces, labels and the guard predicate (@p) in front of an instruction."""


class UnsupportedInstruction(Exception):
    """The cpu backend has no function for an inline PTX instruction, whose file and line are known."""

    def __init__(self, instruction: str, file: str, line: int) -> None:
        self.message = f"inline PTX '{instruction}' is not known to the cpu backend"
        super().__init__(f"{file}:{line}: {self.message}")
        self.instruction = instruction
        self.file = file
        self.line = line


@dataclass(frozen=True)
class Statement:
    """One asm statement: its position [start, end) in the text, its template and its operands' expressions."""

    start: int
    end: int
    template: str
    operands: tuple[str, ...]


def replace_unroll(text: str, macros: Mapping[str, str]) -> str:
    """Replace `#pragma unroll` by `#pragma GCC unroll`; line numbers do not change."""

    def replacement(match: re.Match[str]) -> str:
        argument = match.group(2).strip().strip("()").strip()
        count = macros.get(argument, argument)
        factor = int(count) if count.isdigit() else UNROLL_WITHOUT_COUNT
        return f"{match.group(1)}#pragma GCC unroll {min(factor, 1024)}"

    return UNROLL.sub(replacement, text)


def relax_initialisation(text: str) -> str:
    """Require constant initialisation only of `extern` arrays, where it avoids a wrapper call at each use.

    In clang's traced builds, vector types have their own copy constructors, so clang rejects the attribute on others.
    """
    return CONSTANT_INITIALISATION.sub(lambda match: match.group() if match.group(1) else "", text)


def replace_noinline(text: str) -> str:
    """Replace CUDA's `__noinline__` by an attribute, except where the word already is in an attribute."""

    def replacement(match: re.Match[str]) -> str:
        previous_character = text[max(0, match.start() - 80) : match.start()].rstrip()[-1:]
        return match.group() if previous_character in {"(", ","} else "__attribute__((noinline))"

    parts, position = [], 0
    for match in outside_strings(NOINLINE, text):
        parts += [text[position : match.start()], replacement(match)]
        position = match.end()
    return "".join(parts) + text[position:]


def replace_built_in_copies(text: str, names: Sequence[str]) -> str:
    """Replace built-in functions such as `__builtin_memcpy` by calls of `::memcpy`, which a traced build can trace."""
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
        names += [
            identifiers[-1] for part in declaration.split(",") if (identifiers := re.findall(r"[A-Za-z_]\w*", part))
        ]
    return sorted(set(names))


def replace_ptx(text: str) -> str:
    """Replace every asm statement with PTX by C++; raise UnsupportedInstruction. Line numbers do not change."""
    parts: list[str] = []
    position = 0
    for match in outside_strings(ASM, text):
        if match.start() < position or is_in_system_header(text, match.start()):
            continue
        statement = _parse_asm(text, match)
        if not statement.template.strip() and not statement.operands:
            continue
        try:
            # An empty statement with operands pins a register on the GPU; here it only prevents reordering.
            statements = translate(statement.template, statement.operands) or KEEP_ORDER
        except UnknownInstruction as unknown:
            raise UnsupportedInstruction(str(unknown), *locate(text, statement.start)) from None
        file, line = locate(text, statement.end)
        line_ending = "\n" * text.count("\n", statement.start, statement.end)
        if INNER_MARKER.search(text, statement.start, statement.end):
            line_ending = f'\n# {line} "{file}"\n'
        parts += [text[position : statement.start], f"({{ {statements} }})", line_ending]
        position = statement.end
    return "".join(parts) + text[position:]


def instructions_of(text: str) -> Iterator[tuple[str, int]]:
    """Yield each instruction of inline PTX outside of system headers, and the position of its asm statement."""
    for match in outside_strings(ASM, text):
        if is_in_system_header(text, match.start()):
            continue
        statement = _parse_asm(text, match)
        for instruction_text in COMMENT.sub(" ", statement.template).split(";"):
            if instruction := PTX_BEFORE_OPCODE.sub("", instruction_text).strip():
                yield instruction, statement.start


def outside_strings(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the pattern's matches that do not begin inside a string or character literal."""
    start = 0
    for match in pattern.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        if match.start() >= start and not LITERAL.sub("", text[line : match.start()]).count('"'):
            start = match.end()
            yield match


def _marker_before(text: str, position: int) -> re.Match[str] | None:
    """Return the last line marker before a position of preprocessed text; None if there is none."""
    start = text.rfind("\n# ", 0, position)
    while start >= 0:
        marker = LINE_MARKER.match(text, start + 1)
        if marker is not None:
            return marker
        start = text.rfind("\n# ", 0, start)
    return None


def is_in_system_header(text: str, position: int) -> bool:
    """Return whether a position of preprocessed text comes from a system header."""
    marker = _marker_before(text, position)
    return marker is not None and SYSTEM_HEADER in marker.group(3).split()


def locate(text: str, position: int) -> tuple[str, int]:
    """Return the source file and line of a position in preprocessed text; ("", 0) if there is no line marker."""
    marker = _marker_before(text, position)
    if marker is None:
        return "", 0
    return marker.group(2), int(marker.group(1)) + text.count("\n", marker.end(), position) - 1


def _parse_asm(text: str, match: re.Match[str]) -> Statement:
    """Return the asm statement that begins at a match, with its template and operands."""
    end = _closing_bracket(text, match.end())
    return Statement(match.start(), end + 1, *_parse_statement(text[match.end() : end]))


@functools.lru_cache(CACHED_STATEMENTS)
def _parse_statement(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the template and the operands of an asm statement, whose text is inside its brackets."""
    sections = _split(text, ":")
    template = "".join(STRING.findall(sections[0])).replace("\\n", "\n").replace("\\t", " ")
    operands: list[str] = []
    for section in sections[1:3]:
        for operand in _split(section, ","):
            constraint = CONSTRAINT.match(operand)
            if constraint is not None:
                expression = operand[constraint.end() : _closing_bracket(operand, constraint.end())]
                operands.append(INNER_MARKER.sub(" ", expression).strip())
    return template, tuple(operands)


def _closing_bracket(text: str, position: int) -> int:
    """Return the position of the bracket that closes the one before `position`; the text's length if none does."""
    depth = 1
    for match in BRACKET.finditer(text, position):
        if match.group() in OPENING:
            depth += 1
        elif match.group() in CLOSING:
            depth -= 1
            if depth == 0:
                return match.start()
    return len(text)


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of strings and brackets; `::` counts as two colons here, as in the asm grammar."""
    parts, start, depth = [], 0, 0
    for match in SEPARATED_BY[separator].finditer(text):
        if match.group() in OPENING:
            depth += 1
        elif match.group() in CLOSING:
            depth -= 1
        elif match.group() == separator and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]
