"""Read and adjust the thread-local symbols of an object file, which are what `__shared__` arrays become."""

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
"""Allocated and writable; what no kernel may write holds the compiler's own constants too."""
SYMBOL_OBJECT = 1
SYMBOL_THREAD_LOCAL = 6
UNDEFINED = 0
OTHERS = frozenset({"opb_current", "_TLS_MODULE_BASE_"})
"""Undefined as well, but the runtime's own, respectively the linker's."""
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
    """A section header, and where it stands in the file."""

    position: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class SharedArray:
    """A `__shared__` array, by its place in a thread's block of shared memory; or a variable, by that in its module."""

    name: str
    offset: int
    bytes: int
    owner: str = ""
    """The kernel or function that declares it, where its symbol tells."""
    constant: bool = False
    """Whether it is a `__constant__` variable, which no kernel may write."""

    def distance(self, address: int) -> int:
        """How far an address lies outside of the array; 0 inside."""
        return max(self.offset - address, address - (self.offset + self.bytes - 1), 0)


def undefined_thread_locals(object_file: Path) -> list[str]:
    """Names of the `extern __shared__` arrays that a 64-bit little-endian ELF object refers to."""
    names = [name for name, _, _, section in _symbols(_read(object_file), SYMBOL_THREAD_LOCAL) if section == UNDEFINED]
    return [name for name in dict.fromkeys(names) if name not in OTHERS]


def needs_libraries(object_file: Path, arrays: Collection[str]) -> bool:
    """Whether an object needs more than `arrays` and what the runtime and every process have."""
    names = (name for name, _, _, section in _symbols(_read(object_file)) if section == UNDEFINED and name)
    return any(name not in arrays and not EVERYWHERE.fullmatch(name) for name in names)


@functools.lru_cache(64)
def imported_symbols(module: Path) -> frozenset[str]:
    """Names of what a linked module calls or refers to and does not define: the runtime's functions among them."""
    return frozenset(name for name, _, _, section in _symbols(_read(module)) if section == UNDEFINED and name)


@functools.lru_cache(64)
def shared_arrays(module: Path) -> list[SharedArray]:
    """The arrays that a linked module defines; the dynamic one has no size of its own."""
    found = {
        (offset, size): SharedArray(plain_name(name), offset, size, owner_of(name))
        for name, offset, size, section in _symbols(_read(module), SYMBOL_THREAD_LOCAL)
        if section != UNDEFINED and not name.endswith(PROBE) and (size or name == DYNAMIC)
    }
    return sorted(found.values(), key=lambda array: array.offset)


@functools.lru_cache(64)
def module_variables(module: Path) -> list[SharedArray]:
    """The writable variables that a linked module defines, `__device__` and `__constant__` ones; no two overlap."""
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
    """Where a symbol of a linked module stands, counted from the start of the module; raises ValueError."""
    for name, offset, _, section in _symbols(_read(module)):
        if name == wanted and section != UNDEFINED:
            return offset
    raise ValueError(f"{module.name} has no symbol {wanted}")


def widen_arrays(object_file: Path) -> None:
    """Leave a gap after every array: sections of zeros have no content, so growing one is a matter of its header.

    What is initialised has none: an index past its end may land in another variable, unseen.
    """
    data = bytearray(_read(object_file))
    for section in _sections(bytes(data)):
        if section.kind == SECTION_NO_BITS and section.flags & SECTION_WRITABLE == SECTION_WRITABLE and section.size:
            struct.pack_into("<Q", data, section.position + 32, section.size + GAP)
    object_file.write_bytes(data)


def owner_of(symbol: str) -> str:
    """The function that a mangled name says a variable stands in: `_ZZ12matmul_tiledE4tile` → `matmul_tiled`."""
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
    """Name, value, size and section index of every symbol of one type, or of all."""
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
