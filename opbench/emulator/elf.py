"""Read symbols of an ELF file and adjust the thread-local ones, to which `__shared__` arrays are compiled."""

from __future__ import annotations

import functools
import io
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

from opbench.backend.symbols import plain_name

UNDEFINED = "SHN_UNDEF"
SIZE_OFFSET = 32
"""Offset in bytes of `sh_size` in a section header of a 64-bit ELF file."""
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
    """Return the names of the `extern __shared__` arrays that an object file refers to."""
    names = [one.name for one in _symbols(_read(object_file), "STT_TLS") if one["st_shndx"] == UNDEFINED]
    return [name for name in dict.fromkeys(names) if name not in OTHERS]


def needs_libraries(object_file: Path, arrays: Collection[str]) -> bool:
    """Return whether an object refers to a symbol that is neither in `arrays` nor defined in every process."""
    return any(name not in arrays and not EVERYWHERE.fullmatch(name) for name in _undefined(object_file))


@functools.lru_cache(64)
def imported_symbols(module: Path) -> frozenset[str]:
    """Return the names of the undefined symbols of a linked module, such as the runtime's functions."""
    return frozenset(_undefined(module))


@functools.lru_cache(64)
def shared_arrays(module: Path) -> list[SharedArray]:
    """Return the `__shared__` arrays that a linked module defines; the dynamic array has size 0."""
    arrays = {
        (one["st_value"], one["st_size"]): SharedArray(
            plain_name(one.name), one["st_value"], one["st_size"], owner_of(one.name)
        )
        for one in _symbols(_read(module), "STT_TLS")
        if one["st_shndx"] != UNDEFINED and not one.name.endswith(PROBE) and (one["st_size"] or one.name == DYNAMIC)
    }
    return sorted(arrays.values(), key=lambda array: array.offset)


@functools.lru_cache(64)
def module_variables(module: Path) -> list[SharedArray]:
    """Return the `__device__` and `__constant__` variables of a linked module, sorted by offset; no two overlap."""
    elf = _read(module)
    # Sections that are only read contain constants of the compiler, too; thread-local ones contain shared arrays.
    wanted = SH_FLAGS.SHF_WRITE | SH_FLAGS.SHF_ALLOC
    writable = {
        index
        for index, section in enumerate(elf.iter_sections())
        if section["sh_flags"] & (wanted | SH_FLAGS.SHF_TLS) == wanted
    }
    variables: list[SharedArray] = []
    for one in sorted(_symbols(elf, "STT_OBJECT"), key=lambda symbol: int(symbol["st_value"])):
        offset, size = one["st_value"], one["st_size"]
        overlaps = variables and offset < variables[-1].offset + variables[-1].bytes
        if one["st_shndx"] in writable and size and not overlaps:
            variables.append(SharedArray(plain_name(one.name), offset, size))
    return variables


def symbol_offset(module: Path, wanted: str) -> int:
    """Return the offset in bytes of a symbol from the start of its linked module; raise ValueError if undefined."""
    for one in _symbols(_read(module)):
        if one.name == wanted and one["st_shndx"] != UNDEFINED:
            return int(one["st_value"])
    raise ValueError(f"{module.name} has no symbol {wanted}")


def widen_arrays(object_file: Path) -> None:
    """Add a gap after every zero-initialised array, so that an index past its end does not reach the next array.

    A section of zeros has no content in the file, so only the size in its header changes; pyelftools does not write.
    Initialised variables get no gap: an index past the end of one may reach another variable undetected.
    """
    elf = _read(object_file)
    data = bytearray(object_file.read_bytes())
    wanted = SH_FLAGS.SHF_WRITE | SH_FLAGS.SHF_ALLOC
    for index, section in enumerate(elf.iter_sections()):
        size = section["sh_size"]
        if section["sh_type"] == "SHT_NOBITS" and section["sh_flags"] & wanted == wanted and size:
            struct.pack_into("<Q", data, elf["e_shoff"] + index * elf["e_shentsize"] + SIZE_OFFSET, size + GAP)
    object_file.write_bytes(data)


def owner_of(symbol: str) -> str:
    """Return the function in which a mangled variable is declared: `_ZZ12matmul_tiledE4tile` → `matmul_tiled`."""
    match = re.match(r"_ZZ(?:N\d+\w+?)?(\d+)", symbol)
    if match is None:
        return ""
    return symbol[match.end() : match.end() + int(match[1])]


def _read(path: Path) -> ELFFile:
    return ELFFile(io.BytesIO(path.read_bytes()))


def _symbols(elf: ELFFile, kind: str = "") -> Iterator[Symbol]:
    """Yield the symbols of a type such as STT_TLS, or of every type."""
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    return (symbol for symbol in table.iter_symbols() if not kind or symbol["st_info"]["type"] == kind)


def _undefined(path: Path) -> list[str]:
    """Return the names of the symbols that a file refers to and does not define."""
    return [one.name for one in _symbols(_read(path)) if one["st_shndx"] == UNDEFINED and one.name]
