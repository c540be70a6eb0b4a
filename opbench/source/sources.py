"""Read the text of a kernel: its own file and every header that it includes."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import os
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opbench.errors import Location, UsageError
from opbench.source.precision import UNNAMED_TYPE

_WORD = r"""
    (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
  | "(?:\\.|[^"\\\n])*"
  | '(?:\\.|[^'\\\n])*'
  | \.?\d(?:'?[\w.])*
  | [A-Za-z_]\w*
"""
# Comments and strings are matched first, so that nothing inside them is taken for a directive.
_TOKEN = re.compile(
    rf"""
    (?P<comment> //(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z) )
  | {_WORD}
  | \#(?:[ \t]|\\\r?\n|/\*.*?\*/)*include\b(?:[ \t]|\\\r?\n|/\*.*?\*/)*
    (?P<name><[^>\n]+>|"[^"\n]+"|[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)

_BLANKS = re.compile(rf"{_WORD} | (?P<continuation>\\[ \t]*\r?\n) | (?P<blanks>\s+)", re.VERBOSE | re.DOTALL)

_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[^\\\n]|\\.|\\\n)*", re.MULTILINE)
_MATRIX = re.compile(
    r"\b(?P<ptx>mma\.(?:sp\S*\.)?sync|wgmma\.mma_async|wmma\.mma|tcgen05\.mma)(?P<types>[^;]*)"
    r"|\bfragment\s*<\s*(?:\w+\s*::\s*)*matrix_[ab]\b(?P<element>[^;]*?>)"
)
_CLASSES = {
    "tf32": re.compile(r"\btf32\b"),
    "bf16": re.compile(r"\bbf16\b|\b__nv_bfloat16\b"),
    "f16": re.compile(r"\bf16\b|\bhalf\b|\b__half\b"),
    "f64": re.compile(r"\bf64\b|\bdouble\b"),
    "e4m3": re.compile(r"\be4m3\b"),
    "e5m2": re.compile(r"\be5m2\b"),
    "s8": re.compile(r"\bs8\b"),
}


MAX_BYTES = 64 << 20
"""The largest file that is read as source text."""
MAX_INCLUDE_DEPTH = 200
"""How deep includes may nest; g++ has the same limit."""
CACHED_TEXTS = 1024
"""Number of texts whose results are cached: a header may be part of a hundred files."""


@dataclass(frozen=True)
class Source:
    """The content of one file at the time when it was read."""

    path: Path
    content: bytes
    modified_ns: int

    @property
    def is_unchanged(self) -> bool:
        """Return whether the file still has the same modification time and size."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_mtime_ns, status.st_size) == (self.modified_ns, len(self.content))

    @property
    def text(self) -> str:
        """Return the file's text; bytes that are not UTF-8 become replacement characters."""
        return self.content.decode(errors="replace")


def include_closure(path: Path, folders: Sequence[Path] = ()) -> tuple[Source, ...]:
    """Return a file and each header that it includes, directly or indirectly, once, in the order of inclusion.

    `folders` are searched as the compilers search them. A header in none of them, such as cuda_fp16.h, is the
    compiler's own and is skipped. A Python file includes nothing. Conditions are not evaluated: a header is
    included under any macro. Raises UsageError with file:line for an include whose name is a macro, for a huge
    file and for includes that nest too deep, and OSError for an unreadable file.
    """
    result: dict[tuple[int, int], Source] = {}

    def visit(file: Path, depth: int) -> None:
        status = file.stat()  # before reading, so that a concurrent edit is noticed later
        if status.st_size > MAX_BYTES:
            raise UsageError(
                f"{file}: this file has {status.st_size:,} bytes, and a source file may have at most {MAX_BYTES:,}; "
                "split the file, or name a .cu file",
                kind="file-too-large",
                subject=file,
                value=status.st_size,
                allowed=MAX_BYTES,
            )
        source = result[_identity(status)] = Source(file, file.read_bytes(), status.st_mtime_ns)
        if file.suffix == ".py":
            return
        for line, name in includes(source.text):
            if name[0] not in '<"':
                raise UsageError(
                    f"'#include {name}' is not allowed, because {name} is a macro and opbench must know each header; "
                    'write the name of the header, such as #include "tile.cuh"',
                    Location(file, line),
                    kind="macro-include",
                    subject=name,
                )
            own_folder = [file.parent] if name[0] == '"' else []
            header = next(
                (candidate for folder in (*own_folder, *folders) if (candidate := folder / name[1:-1]).is_file()), None
            )
            if header is not None and _identity(header.stat()) not in result:
                if depth == MAX_INCLUDE_DEPTH:
                    raise UsageError(
                        f"the #include lines nest deeper than {MAX_INCLUDE_DEPTH} files; check whether a header "
                        "includes itself, or merge some headers",
                        Location(file, line),
                        kind="includes-too-deep",
                        subject=file,
                        allowed=MAX_INCLUDE_DEPTH,
                    )
                visit(header, depth + 1)

    visit(path, 1)
    return tuple(result.values())


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return what identifies a file under all of its names; to resolve its links would take ten times as long."""
    return status.st_dev, status.st_ino


def code_checksum(sources: Sequence[Source], settings: str) -> str:
    """Return the SHA-256 of all that runs: `settings`, and the code of a file and its headers.

    Comments, indentation and empty lines change nothing that runs, so results stay valid when they are edited.
    """
    codes = [
        replace(source, content=_python_code(source.content) if source.path.suffix == ".py" else _code(source.content))
        for source in sources
    ]
    return hashlib.sha256(f"{settings}\0{text_checksum(codes)}".encode()).hexdigest()


@functools.lru_cache(CACHED_TEXTS)
def _code(content: bytes) -> bytes:
    """Return C++ code without comments; outside strings, blanks become one blank, or one line end."""

    def shorten(match: re.Match[str]) -> str:
        if match["continuation"]:
            return "\\\n"
        return ("\n" if "\n" in match[0] else " ") if match["blanks"] else match[0]

    text = content.decode(errors="surrogateescape")
    without = _TOKEN.sub(lambda match: " " if match["comment"] else match[0], text)
    return _BLANKS.sub(shorten, without).strip().encode(errors="surrogateescape")


def _python_code(content: bytes) -> bytes:
    """Return Python code without its module docstring, comments and empty lines; unchanged if it does not parse."""
    text = content.decode()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return content
    lines = io.StringIO(text).readlines()
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        if token.type in (tokenize.COMMENT, tokenize.NL):  # NL ends a line that ends no statement, such as an empty one
            row, column = token.start
            line = lines[row - 1][:column].rstrip()
            lines[row - 1] = f"{line}\n" if line else ""
    docstring_lines = (tree.body[0].end_lineno or 0) if ast.get_docstring(tree) else 0
    return "".join(lines[docstring_lines:]).encode()


def text_checksum(sources: Sequence[Source]) -> str:
    """Return the SHA-256 of the complete text of a file and its headers."""
    kernel_source, *headers = sources
    digest = hashlib.sha256(kernel_source.content)
    for header in headers:
        digest.update(f"\0{header.path.name}\0{len(header.content)}\0".encode() + header.content)
    return digest.hexdigest()


@functools.lru_cache(CACHED_TEXTS)
def without_comments(text: str) -> str:
    """Replace the comments of a text by blanks; line ends stay."""

    def blank(match: re.Match[str]) -> str:
        return " " + "\n" * match[0].count("\n") if match["comment"] else match[0]

    return _TOKEN.sub(blank, text)


@functools.lru_cache(CACHED_TEXTS)
def plain_code(text: str) -> str:
    """Replace the comments and the contents of strings by blanks; line ends stay."""

    def blank(match: re.Match[str]) -> str:
        if match["comment"]:
            return " " + "\n" * match[0].count("\n")
        return '""' + "\n" * match[0].count("\n") if match[0][-1:] in ("'", '"') and not match["name"] else match[0]

    return _TOKEN.sub(blank, text)


def without_unused_macros(code: str) -> str:
    """Replace the definitions of unused macros by blanks; `code` has no comments and strings."""
    definitions = {m[1]: m for m in _DEFINITION.finditer(code)}
    used = set(re.findall(r"[A-Za-z_]\w*", _DEFINITION.sub("", code)))
    unvisited = list(used & definitions.keys())
    while unvisited:
        newly_used = set(re.findall(r"[A-Za-z_]\w*", definitions[unvisited.pop()][0])) & definitions.keys() - used
        used |= newly_used
        unvisited += newly_used
    return _DEFINITION.sub(lambda m: m[0] if m[1] in used else "\n" * m[0].count("\n"), code)


def defined_macros(text: str) -> list[str]:
    """Return the names that a text defines as macros, in order."""
    return [match[1] for match in _DEFINITION.finditer(text)]


def tensor_core_operand_types(sources: Sequence[Source]) -> dict[str, str]:
    """Return the operand types of the tensor-core instructions in sources, each with file:line of its first use."""
    classes: dict[str, str] = {}
    for source in sources:
        if b"mma" not in source.content:
            continue
        text = without_comments(source.text)
        for match in _MATRIX.finditer(text):
            operands = match["types"] or match["element"] or ""
            names = [name for name, pattern in _CLASSES.items() if pattern.search(operands)] or [UNNAMED_TYPE]
            for name in names:
                classes.setdefault(name, f"{source.path}:{text.count(chr(10), 0, match.start()) + 1}")
    return classes


@functools.lru_cache(CACHED_TEXTS)
def includes(text: str) -> tuple[tuple[int, str], ...]:
    """Return the line and the name, with quotes, of each include in a text."""
    if "include" not in text:
        return ()
    name_matches = (match for match in _TOKEN.finditer(text) if match["name"])
    return tuple((text.count("\n", 0, match.start()) + 1, match["name"]) for match in name_matches)
