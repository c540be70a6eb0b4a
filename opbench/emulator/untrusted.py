"""Rules for the text and the object file of an untrusted kernel: only device code, nothing that runs on the host.

A compiled kernel is part of a process, so C++ for the host could do what the process may do. The rules reject
everything that CUDA device code does not need. The cage does not depend on them: they protect the findings, which
the kernel's process itself reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

from opbench.emulator.ptx import LINE_MARKER, LITERAL
from opbench.errors import CompileError, Location
from opbench.kernels.launch import BuildRequest
from opbench.source.sources import Source

HEADER_SUFFIXES = (".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".cu")

# The text as it is written ------------------------------------------------------------------------------------------

CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
DIRECTIVE = re.compile(r"^(?:.*\*/)?\s*(?:#|%:)\s*(\w*)(.*)")
"""A line that may be a directive, even within a comment or a string, because compilers may disagree on those."""
DIRECTIVES = frozenset(
    ("", "if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef", "include", "error", "warning", "pragma")
)
HEADER_NAME = re.compile(r"\s*([\"<])([^\">]+)[\">]")
PRAGMA = re.compile(
    r"\s*(?:once|unroll|nounroll|nv_\w+|diag_\w+|hd_warning_disable|region|endregion|warning|message"
    r"|(?:push|pop)_macro|(?:GCC|clang)\s+(?:unroll|ivdep|loop|diagnostic))\b"
)
HEADER_TEST = re.compile(r"__has_(?:include|include_next|embed)\b(?:\s*\(\s*[\"<]([^\">]+)[\">])?")
RESERVED = re.compile(r"\b(?:opb_|OPB_|__tsan_|__ubsan_|__sanitizer_)\w+")

# The names that the header gives, from which the emulator writes code ------------------------------------------------

NAME_EXPRESSION = re.compile(r"[\w\s:<>,()\[\]*&+\-/%|^~!=?.']*")
HOST_NAME = re.compile(r"\b(?:asm|__asm\w*|__attribute\w*|__builtin_\w+|_Pragma)\b|\n|\[\s*\[")

# The preprocessed text ----------------------------------------------------------------------------------------------

ATTRIBUTE = re.compile(r"\b__attribute(?:__)?\s*\(|\[\s*\[")
NAME = re.compile(r"[A-Za-z_]\w*")
# fmt: off
ATTRIBUTES = frozenset((
    "aligned", "packed", "noinline", "always_inline", "unused", "maybe_unused", "used", "may_alias", "const", "pure",
    "noreturn", "nodiscard", "vector_size", "opb_constant", "require_constant_initialization", "gnu_inline",
    "artificial", "deprecated", "nothrow", "cold", "hot", "fallthrough", "likely", "unlikely", "no_unique_address",
    "returns_nonnull", "nonnull", "warn_unused_result", "convergent", "noduplicate", "carries_dependency", "gnu",
    "clang", "using",
))
# fmt: on
"""Attributes that change neither the name, the section, the time of execution nor the tracing of a function."""
ASM = re.compile(r"(?<![\w$])(?:asm|__asm__|__asm)\b")
EMPTY_ASM = re.compile(r'(?:asm|__asm__|__asm)\s*(?:volatile|__volatile__)?\s*\(\s*""\s*(?::\s*)*(?:"memory"\s*)?\)')
PRAGMA_LINE = re.compile(r"^[ \t]*#[ \t]*pragma\b(.*)$", re.MULTILINE)
HOST_CODE = re.compile(
    r"\b__builtin_(?:\w*return_addr\w*|frame_address|apply\w*|return|longjmp|setjmp|eh_\w+|unwind_\w+|init_dwarf\w+"
    r"|dwarf_\w+|alloca\w*|\w*thread_pointer|ia32_\w+|aarch64_\w+|_*clear_cache|stack_\w+)\b"
    r"|\bgoto\s*\*|\bthrow\b|\bcatch\s*\("
)

# The object file ----------------------------------------------------------------------------------------------------

LAUNCHER_SYMBOL = re.compile(
    r"opb_(?:launch|refuse_memory|shared_numbers|take_\w+|trace_(?:open|close|arrays|variables|initialised|caches|take\w*))"
)
"""The runtime's functions for the process that launches a module."""
RUNTIME_SYMBOL = re.compile(r"opb_\w+|__tsan_\w+|__ubsan_handle_\w+|__sanitizer_cov_\w+")
MODULE_SYMBOL = re.compile(
    r"opb_(?:entry_\d+(?:_signature|_sizes)?|constant_\d+(?:_bytes)?|touch_shared|dynamic_shared)"
)
"""The emulator's functions that a module defines."""
COMPILER_SYMBOL = re.compile(
    r"mem(?:cpy|move|set|cmp)|__tls_get_addr|_GLOBAL_OFFSET_TABLE_|_TLS_MODULE_BASE_|__cxa_guard_\w+|__stack_chk_fail|abort"
    r"|__(?:extend|trunc|fix|fixuns|float|floatun)[sdtxhb][fi][sdtxhb][fi]2|__(?:fix|fixuns|float|floatun)[sdtx][fi][sdt]i"
    r"|__(?:float|floatun)[sdt]i[sdtxhb]f|__(?:u?div|u?mod|mul|ashl|ashr|lshr|neg|u?cmp|popcount|clz|ctz|ffs|parity|bswap)"
    r"(?:mod)?[sdt][ic]\d|__(?:pow|add|sub|mul|div|neg|eq|ne|lt|le|gt|ge|unord)[sdtxhb][fi]\d"
    r"|__(?:aarch64_\w+|atomic_(?:load|store|exchange|compare_exchange|fetch_\w+)(?:_\d+)?)"
)
"""Functions that a compiler calls by itself."""
OUTPUT_SYMBOL = re.compile(r"v?printf|snprintf|puts|putchar")
"""printf of device code, which g++ may replace, and snprintf in messages of textures."""
MATHEMATICS_SYMBOL = re.compile(
    r"(?:__)?(?:a?(?:cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp(?:2|10|m1)?|fabs|fdim|floor|fma|fmax|fmin|fmod|frexp"
    r"|hypot|ilogb|ldexp|lgamma(?:_r)?|l?lrint|l?lround|log(?:2|10|1p|b)?|modf|nan|nearbyint|nextafter|pow|remainder|remquo"
    r"|rint|round(?:even)?|scalbl?n|sincos|sqrt|tgamma|trunc|[jy](?:[01n])|finite|isnan|isinf|signbit|fpclassify)[fl]?"
    r"(?:_finite)?(?:f(?:16|32|64|128))?"
)
ALLOWED_SYMBOLS = (RUNTIME_SYMBOL, COMPILER_SYMBOL, OUTPUT_SYMBOL, MATHEMATICS_SYMBOL)
"""The functions that a module may call."""
HOST_SECTION = re.compile(r"\.(?:preinit_array|fini_array|ctors|dtors|init|fini)\b.*")
TRACER_START = (".init_array.00099", 8)
"""g++'s only constructor in a traced build calls __tsan_init: the name and the size in bytes of its section."""
EXECUTABLE = SH_FLAGS.SHF_EXECINSTR
UNDEFINED = "SHN_UNDEF"
DEFINED_ELSEWHERE = frozenset(("SHN_ABS", "SHN_COMMON", UNDEFINED))


def require_own_files(request: BuildRequest, sources: Sequence[Source]) -> None:
    """Raise CompileError if a file of a kernel is outside of its folder or contains a directive for the host.

    Its folder is that of the `.cu` file; the folders that the request names for headers count, too.
    """
    folders = [folder.resolve() for folder in (request.source.parent, *request.include)]
    for source in sources:
        resolved = source.path.resolve()
        relative = next((resolved.relative_to(folder) for folder in folders if resolved.is_relative_to(folder)), None)
        is_outside = relative is None or any(part.startswith(".") for part in relative.parts)
        if is_outside or (resolved.suffix not in HEADER_SUFFIXES):
            raise CompileError(
                f"{source.path.name} is included, but an untrusted kernel may include only headers "
                f"({' '.join(HEADER_SUFFIXES)}) in the kernel's folder or below it; move the file there",
                kind="not-a-header",
                subject=source.path,
                allowed=tuple(HEADER_SUFFIXES),
            )
        for line, text in _logical_lines(source.text):
            if directive := _forbidden_part(text):
                raise _not_allowed_error(directive, source.path, line)


def require_plain_names(request: BuildRequest) -> None:
    """Raise CompileError if a name or a macro of the header is more than a name expression or a value."""
    all_names = [*request.roots, *(name for macro in request.macros for name in macro)]
    for name in all_names:
        if not NAME_EXPRESSION.fullmatch(name) or HOST_NAME.search(name):
            raise _not_allowed_error(name, request.source)


def require_device_code(text: str, own_files: Collection[Path]) -> None:
    """Raise CompileError if the lines of a kernel's own files in preprocessed text contain host code.

    `own_files` are these files, with absolute paths.
    """
    files = {str(path) for path in own_files}
    for file, first_line, part_text in _parts_by_file(text):
        if file not in files:
            continue
        without_strings = LITERAL.sub(lambda literal: '"' + " " * (len(literal[0]) - 2) + '"', part_text)
        for match in _forbidden_code(part_text, without_strings):
            raise _not_allowed_error(
                match[0].strip().split("\n")[0], Path(file), first_line + part_text.count("\n", 0, match.start())
            )


def require_device_object(object_file: Path, arrays: Collection[str], source: Path) -> None:
    """Raise CompileError if an object file runs code when loaded, calls host functions or replaces the emulator's.

    `arrays` are the names of the `extern __shared__` arrays, which the link step defines.
    """
    with object_file.open("rb") as file:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            is_constructor = (
                section.name.startswith(".init_array") and (section.name, section["sh_size"]) != TRACER_START
            )
            if is_constructor or HOST_SECTION.fullmatch(section.name):
                raise _not_allowed_error(
                    "a variable or a function whose constructor or destructor runs on the host", source
                )
            if section["sh_flags"] & EXECUTABLE and not section.name.startswith(".text"):
                raise _not_allowed_error(f"the executable section {section.name}", source)
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        for symbol in table.iter_symbols():
            _require_device_symbol(elf, symbol, arrays, source)


def _require_device_symbol(elf: ELFFile, symbol: Symbol, arrays: Collection[str], source: Path) -> None:
    """Raise CompileError for a symbol that calls the host, replaces the emulator's functions or is executable data."""
    name, section_index, symbol_type = symbol.name, symbol["st_shndx"], symbol["st_info"]["type"]
    if section_index == UNDEFINED:
        is_allowed = name in arrays or (
            any(pattern.fullmatch(name) for pattern in ALLOWED_SYMBOLS) and not LAUNCHER_SYMBOL.fullmatch(name)
        )
        if name and not is_allowed:
            raise _not_allowed_error(f"a call of {name}, which is a host function", source)
        return
    if symbol_type == "STT_LOOS":
        raise _not_allowed_error(
            f"{name}, an indirect function: code of the host chooses it when the kernel is loaded", source
        )
    is_runtime_name = RUNTIME_SYMBOL.fullmatch(name) and not MODULE_SYMBOL.fullmatch(name)
    if symbol_type in {"STT_FUNC", "STT_OBJECT", "STT_NOTYPE"} and (is_runtime_name or COMPILER_SYMBOL.fullmatch(name)):
        raise _not_allowed_error(f"{name}, which replaces a function of the emulator", source)
    if (
        symbol_type == "STT_OBJECT"
        and section_index not in DEFINED_ELSEWHERE
        and elf.get_section(section_index)["sh_flags"] & EXECUTABLE
    ):
        raise _not_allowed_error(f"{name}, data in an executable section", source)


def _not_allowed_error(text: str, file: Path, line: int = 0) -> CompileError:
    """Return the error for code that is not allowed in an untrusted kernel."""
    message = (
        f"'{text}' is not allowed in an untrusted kernel, which may contain only device code; remove this code, or "
        "remove --untrusted if you trust the kernel"
    )
    return CompileError(message, Location(file, line)) if line else CompileError(f"{file}: {message}")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line; lines that end with a backslash are joined."""
    number, first_number, joined_line = 0, 1, ""
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = line.rstrip(" \t\v\f")
        joined_line += stripped[:-1] if stripped.endswith("\\") else line
        if not stripped.endswith("\\"):
            yield first_number, joined_line
            first_number, joined_line = number + 1, ""
    if joined_line:
        yield first_number, joined_line


def _forbidden_part(line: str) -> str:
    """Return the first part of a line that only host code, or code that reads other files, needs; "" if there
    is none.
    """
    if match := CONTROL.search(line) or RESERVED.search(line):
        return repr(match[0])[1:-1]
    for header_test in HEADER_TEST.finditer(line):
        if not header_test[1] or not _is_relative(header_test[1], upwards=False):
            return header_test[0]
    if directive := DIRECTIVE.match(line):
        name, directive_text = directive[1], directive[2]
        header = HEADER_NAME.match(directive_text)
        allowed = name in DIRECTIVES and (bool(name) or not directive_text.strip())
        if name == "pragma":
            allowed = PRAGMA.match(directive_text) is not None
        if name == "include":
            allowed = header is not None and _is_relative(header[2], upwards=header[1] == '"')
        if not allowed:
            return f"#{name}{directive_text}".strip()
    return ""


def _is_relative(name: str, upwards: bool) -> bool:
    """Return whether a header's name is relative, and whether it has no `..` unless `upwards` allows it."""
    return not name.startswith("/") and "\\" not in name and (upwards or ".." not in name)


def _parts_by_file(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield file, first line and text of each part between two line markers of preprocessed text."""
    markers = list(LINE_MARKER.finditer(text))
    for marker, next_marker in zip(markers, [*markers[1:], None], strict=True):
        end = next_marker.start() if next_marker else len(text)
        yield marker[2], int(marker[1]), text[marker.end() + 1 : end]


def _forbidden_code(text: str, without_strings: str) -> Iterator[re.Match[str]]:
    """Yield the forbidden code in a part of preprocessed text; in `without_strings` the content of its strings is
    blanked.
    """
    yield from HOST_CODE.finditer(without_strings)
    yield from (pragma for pragma in PRAGMA_LINE.finditer(text) if not PRAGMA.match(pragma[1]))
    yield from (match for match in ASM.finditer(without_strings) if not EMPTY_ASM.match(text, match.start()))
    for match in ATTRIBUTE.finditer(without_strings):
        attribute_text = without_strings[match.end() : _closing(without_strings, match.end())]
        names = (name.strip("_") for name in NAME.findall(_without_arguments(attribute_text)))
        if any(name and name not in ATTRIBUTES for name in names):
            yield match


def _closing(text: str, position: int) -> int:
    """Return the position of the bracket that closes the one before `position`."""
    depth = 1
    for match in re.compile(r"[()\[\]]").finditer(text, position):
        depth += 1 if match[0] in "([" else -1
        if not depth:
            return match.start()
    return len(text)


def _without_arguments(text: str) -> str:
    """Return a list of attributes without their arguments: `(aligned(16), packed)` → `(aligned, packed)`."""
    inner = text[1:-1] if text.startswith("(") else text
    while (shorter := re.sub(r"\([^()]*\)", "", inner)) != inner:
        inner = shorter
    return inner
