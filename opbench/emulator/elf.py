"""Read symbols of an ELF file and adjust the thread-local ones, to which `__shared__` arrays are compiled."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from opbench.backend.symbols import plain_name

SECTION_SYMBOLS = 2
SECTION_NO_BITS = 8
SECTION_THREAD_LOCAL = 0x400
SECTION_WRITABLE = 3
"""Flags of an allocated and writable section. Read-only sections are ignored, as they have compiler constants, too."""
SYMBOL_OBJECT = 1
SYMBOL_THREAD_LOCAL = 6
UNDEFINED = 0
OTHERS = frozenset({"opb_current", "_TLS_MODULE_BASE_"})
"""Undefined thread-local symbols that are no `__shared__` arrays: the runtime or the linker defines them."""
EVERYWHERE = re.compile(
    r"(?:opb|__tsan|__ubsan_handle|__sanitizer_cov)_\w+|mem(?:cpy|move|set|cmp)"
    r"|__tls_get_addr|_GLOBAL_OFFSET_TABLE_|_TLS_MODULE_BASE_"
)
PROBE = "opb_probe"
DYNAMIC = "opb_dynamic"
GAP = 1024
"""Bytes that a traced build leaves after each array, so that an index past its end does not land in the next one."""


@dataclass(frozen=True)
class ElfSection:
    """Hold a section header and its position in the file (bytes)."""

    position: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class SharedArray:
    """Describe a `__shared__` array or a module variable.

    `offset` counts bytes from the start of shared memory for an array, from the module's base for a variable.
    """

    name: str
    offset: int
    bytes: int
    owner: str = ""
    """The kernel or function that declares the array; "" if the symbol does not contain a function name."""
    constant: bool = False
    """Whether the variable is `__constant__`, so that no kernel may write it."""

    def distance(self, address: int) -> int:
        """Return how many bytes an address lies outside of the array; 0 if it lies inside."""
        return max(self.offset - address, address - (self.offset + self.bytes - 1), 0)


def undefined_thread_locals(object_file: Path) -> list[str]:
    """Return the names of the `extern __shared__` arrays that a 64-bit little-endian ELF object refers to."""
    names = [name for name, _, _, section in _symbols(_read(object_file), SYMBOL_THREAD_LOCAL) if section == UNDEFINED]
    return [name for name in dict.fromkeys(names) if name not in OTHERS]


def needs_libraries(object_file: Path, arrays: Collection[str]) -> bool:
    """Return whether an object refers to a symbol that is neither in `arrays` nor defined in every process."""
    names = (name for name, _, _, section in _symbols(_read(object_file)) if section == UNDEFINED and name)
    return any(name not in arrays and not EVERYWHERE.fullmatch(name) for name in names)


@functools.lru_cache(64)
def imported_symbols(module: Path) -> frozenset[str]:
    """Return the names of the undefined symbols of a linked module, such as the runtime's functions."""
    return frozenset(name for name, _, _, section in _symbols(_read(module)) if section == UNDEFINED and name)


@functools.lru_cache(64)
def shared_arrays(module: Path) -> list[SharedArray]:
    """Return the `__shared__` arrays that a linked module defines; the dynamic array has size 0."""
    found = {
        (offset, size): SharedArray(plain_name(name), offset, size, owner_of(name))
        for name, offset, size, section in _symbols(_read(module), SYMBOL_THREAD_LOCAL)
        if section != UNDEFINED and not name.endswith(PROBE) and (size or name == DYNAMIC)
    }
    return sorted(found.values(), key=lambda array: array.offset)


@functools.lru_cache(64)
def module_variables(module: Path) -> list[SharedArray]:
    """Return the `__device__` and `__constant__` variables of a linked module, sorted by offset; no two overlap."""
    data = _read(module)
    writable = {
        index
        for index, section in enumerate(_sections(data))
        if section.flags & (SECTION_WRITABLE | SECTION_THREAD_LOCAL) == SECTION_WRITABLE
    }
    found: list[SharedArray] = []
    for name, offset, size, section in sorted(_symbols(data, SYMBOL_OBJECT), key=lambda symbol: symbol[1]):
        if section in writable and size and (not found or offset >= found[-1].offset + found[-1].bytes):
            found.append(SharedArray(plain_name(name), offset, size))
    return found


def symbol_offset(module: Path, wanted: str) -> int:
    """Return the offset in bytes of a symbol from the start of its linked module; raise ValueError if undefined."""
    for name, offset, _, section in _symbols(_read(module)):
        if name == wanted and section != UNDEFINED:
            return offset
    raise ValueError(f"{module.name} has no symbol {wanted}")


def widen_arrays(object_file: Path) -> None:
    """Add a gap after every zero-initialised array, so that an index past its end does not reach the next array.

    A section of zeros has no content in the file, so only the size in its header changes. Initialised variables get
    no gap: an index past the end of one may reach another variable undetected.
    """
    data = bytearray(_read(object_file))
    for section in _sections(bytes(data)):
        if section.kind == SECTION_NO_BITS and section.flags & SECTION_WRITABLE == SECTION_WRITABLE and section.size:
            struct.pack_into("<Q", data, section.position + 32, section.size + GAP)
    object_file.write_bytes(data)


def owner_of(symbol: str) -> str:
    """Return the function in which a mangled variable is declared: `_ZZ12matmul_tiledE4tile` → `matmul_tiled`."""
    match = re.match(r"_ZZ(?:N\d+\w+?)?(\d+)", symbol)
    if match is None:
        return ""
    return symbol[match.end() : match.end() + int(match[1])]


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is no 64-bit little-endian ELF object")
    return data


def _sections(data: bytes) -> list[ElfSection]:
    start = struct.unpack_from("<Q", data, 0x28)[0]
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for position in range(start, start + entry_size * count, entry_size):
        _, kind, flags, _, offset, size, link, _, _, _ = struct.unpack_from("<IIQQQQIIQQ", data, position)
        sections.append(ElfSection(position, kind, flags, offset, size, link))
    return sections


def _symbols(data: bytes, wanted: int | None = None) -> list[tuple[str, int, int, int]]:
    """Return name, value, size and section index of every symbol of type `wanted`; None means all types."""
    sections = _sections(data)
    found = []
    for section in sections:
        if section.kind != SECTION_SYMBOLS:
            continue
        strings = sections[section.link].offset
        for position in range(section.offset, section.offset + section.size, 24):
            name, info, _, index, value, size = struct.unpack_from("<IBBHQQ", data, position)
            if wanted is None or info & 15 == wanted:
                start = strings + name
                found.append((data[start : data.index(b"\0", start)].decode(), value, size, index))
    return found
