"""Read symbols of an ELF file and adjust the thread-local ones, to which `__shared__` arrays are compiled."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from opbench.backend.symbols import plain_name

SECTIONS_AT, SECTION_COUNT_AT = 40, 60
"""Offsets in bytes of `e_shoff` and `e_shnum` in the header of a 64-bit ELF file."""
SECTION_DTYPE = np.dtype(
    {
        "names": ["name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<u8"],
    }
)
SYMBOL_DTYPE = np.dtype(
    {
        "names": ["name", "info", "other", "section", "value", "size"],
        "formats": ["<u4", "u1", "u1", "<u2", "<u8", "<u8"],
    }
)
SYMBOL_TABLE, NO_BITS = 2, 8
"""Types of sections: of symbols, and of zeros that have no content in the file."""
WRITABLE_FLAG, THREAD_LOCAL_FLAG = 0x3, 0x400
"""Flags of sections: writable and in memory; one instance per thread."""
VARIABLE_TYPE, THREAD_LOCAL_TYPE = 1, 6
"""Types of symbols: a variable; a thread-local variable."""
RUNTIME_SYMBOLS = frozenset({"opb_current", "_TLS_MODULE_BASE_"})
"""Undefined thread-local symbols that are no `__shared__` arrays: the runtime or the linker defines them."""
GLOBAL_SYMBOLS = re.compile(
    r"(?:opb|__tsan|__ubsan_handle|__sanitizer_cov)_\w+|mem(?:cpy|move|set|cmp)"
    r"|__tls_get_addr|_GLOBAL_OFFSET_TABLE_|_TLS_MODULE_BASE_"
)
PROBE_SYMBOL = "opb_probe"
DYNAMIC_SYMBOL = "opb_dynamic"
GAP_BYTES = 1024
"""Bytes that a traced build leaves after each array, so that an index past its end does not land in the next one."""


class Symbol(NamedTuple):
    """A symbol of an ELF file; `section` is 0 if the file does not define the symbol."""

    name: str
    kind: int
    section: int
    value: int
    size: int

    @property
    def is_thread_local(self) -> bool:
        return self.kind == THREAD_LOCAL_TYPE


@dataclass(frozen=True)
class SharedArray:
    """A `__shared__` array or a module variable.

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
    """Return the names of the `extern __shared__` arrays that an object file refers to."""
    names = (
        symbol.name for symbol in _symbols(object_file.read_bytes()) if symbol.is_thread_local and not symbol.section
    )
    return [name for name in dict.fromkeys(names) if name not in RUNTIME_SYMBOLS]


def needs_libraries(object_file: Path, arrays: Collection[str]) -> bool:
    """Return whether an object refers to a symbol that is neither in `arrays` nor defined in every process."""
    return any(name not in arrays and not GLOBAL_SYMBOLS.fullmatch(name) for name in _undefined(object_file))


@functools.lru_cache(64)
def imported_symbols(module: Path) -> frozenset[str]:
    """Return the undefined symbols of a linked module, such as the runtime's functions."""
    return frozenset(_undefined(module))


@functools.lru_cache(64)
def shared_arrays(module: Path) -> list[SharedArray]:
    """Return the `__shared__` arrays that a linked module defines; the dynamic array has size 0."""
    arrays = {
        (symbol.value, symbol.size): SharedArray(
            plain_name(symbol.name), symbol.value, symbol.size, owner_of(symbol.name)
        )
        for symbol in _symbols(module.read_bytes())
        if symbol.is_thread_local
        and symbol.section
        and not symbol.name.endswith(PROBE_SYMBOL)
        and (symbol.size or symbol.name == DYNAMIC_SYMBOL)
    }
    return sorted(arrays.values(), key=lambda array: array.offset)


@functools.lru_cache(64)
def module_variables(module: Path) -> list[SharedArray]:
    """Return the `__device__` and `__constant__` variables of a linked module, sorted by offset; no two overlap."""
    content = module.read_bytes()
    # Sections that are only read contain constants of the compiler, too; thread-local ones contain shared arrays.
    flags = _sections(content)["flags"]
    variables: list[SharedArray] = []
    for candidate in sorted(_symbols(content), key=lambda symbol: symbol.value):
        overlaps = variables and candidate.value < variables[-1].offset + variables[-1].bytes
        if candidate.kind != VARIABLE_TYPE or not candidate.size or overlaps or not 0 < candidate.section < len(flags):
            continue
        if int(flags[candidate.section]) & (WRITABLE_FLAG | THREAD_LOCAL_FLAG) == WRITABLE_FLAG:
            variables.append(SharedArray(plain_name(candidate.name), candidate.value, candidate.size))
    return variables


def symbol_offset(module: Path, symbol_name: str) -> int:
    """Return the offset in bytes of a symbol from the start of its linked module; raise ValueError if undefined."""
    for symbol in _symbols(module.read_bytes()):
        if symbol.name == symbol_name and symbol.section:
            return symbol.value
    raise ValueError(f"{module.name} has no symbol {symbol_name}")


def widen_arrays(object_file: Path) -> None:
    """Add a gap after every zero-initialised array, so that an access past its end does not reach the next array.

    A section of zeros has no content in the file, so only the size in its header changes. Initialised variables
    get no gap: an index past the end of one may reach another variable undetected.
    """
    content = bytearray(object_file.read_bytes())
    sections = _sections(content)
    is_zero_section = (
        (sections["type"] == NO_BITS) & (sections["flags"] & WRITABLE_FLAG == WRITABLE_FLAG) & (sections["size"] > 0)
    )
    sections["size"][is_zero_section] += GAP_BYTES
    object_file.write_bytes(content)


def owner_of(symbol: str) -> str:
    """Return the function in which a mangled variable is declared: `_ZZ12matmul_tiledE4tile` → `matmul_tiled`."""
    match = re.match(r"_ZZ(?:N\d+\w+?)?(\d+)", symbol)
    if match is None:
        return ""
    return symbol[match.end() : match.end() + int(match[1])]


def _sections(content: bytes | bytearray) -> np.ndarray:
    """Return the section headers of a 64-bit ELF file, as a view of its content."""
    (offset,) = struct.unpack_from("<Q", content, SECTIONS_AT)
    (count,) = struct.unpack_from("<H", content, SECTION_COUNT_AT)
    # A file with too many sections for 16 bits has the number in the first section's size.
    count = count or int(np.frombuffer(content, SECTION_DTYPE, 1, offset)["size"][0])
    return np.frombuffer(content, SECTION_DTYPE, count, offset)


def _symbols(content: bytes) -> Iterator[Symbol]:
    """Yield the symbols of an ELF file."""
    sections = _sections(content)
    (table,) = sections[sections["type"] == SYMBOL_TABLE]
    names_offset = int(sections[table["link"]]["offset"])
    entries = np.frombuffer(content, SYMBOL_DTYPE, int(table["size"]) // SYMBOL_DTYPE.itemsize, int(table["offset"]))
    for name, info, _, section, value, size in entries.tolist():
        name_start = names_offset + name
        yield Symbol(content[name_start : content.index(0, name_start)].decode(), info & 0xF, section, value, size)


def _undefined(path: Path) -> list[str]:
    """Return the names of the symbols that a file refers to and does not define."""
    return [symbol.name for symbol in _symbols(path.read_bytes()) if not symbol.section and symbol.name]
