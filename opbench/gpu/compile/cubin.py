"""Read a cubin, an ELF file: the registers, memory, code and constants of each kernel."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opbench.errors import OpbenchError

if TYPE_CHECKING:
    from elftools.elf.sections import Section

MACHINE_OFFSET, CUDA_MACHINE = 18, 190
"""Offset in bytes of `e_machine` in an ELF file, and its value in a cubin."""
VARIABLES = (".nv.global", ".nv.constant3")
"""Sections of `__device__` variables, with and without first values, and of `__constant__` ones."""
ENTRY = 0x10
"""Bit of a symbol's `st_other` that marks a kernel; pyelftools drops this bit, so it is read from the file's bytes."""
OTHER_OFFSET = 5
"""Offset in bytes of `st_other` in a symbol of a 64-bit ELF file."""
RESERVED_SHARED = 1024
"""From compute capability 9.0 on `.nv.shared.NAME` begins with a part that the driver reserves."""
MAX_THREADS, FRAME_SIZE, MIN_STACK_SIZE, PARAMETER, REGISTERS = 0x05, 0x11, 0x12, 0x17, 0x2F
"""Attributes of `.nv.info`: EIATTR_MAX_THREADS and so on in the tools' own listings."""
WORDS = 0x04
"""Format of an attribute that stores a length and that many bytes; other formats store a value in its place."""


class BadCubin(OpbenchError):
    """A file is not a cubin, or it has a format that this module cannot read."""


@dataclass(frozen=True)
class CubinKernel:
    """The resources that the compiler assigned to one kernel."""

    name: str
    registers: int
    shared_bytes: int
    """Static only."""
    local_bytes: int
    """Stack frame of a thread: spilled registers and arrays that are indexed at run time."""
    bound_threads: int
    """The maximum number of threads by `__launch_bounds__`; 0 without `__launch_bounds__`."""
    code_bytes: int
    constants: bytes
    """Constants from the compiler and from `__constant__` variables; SASS refers to them only by address."""
    parameter_bytes: tuple[int, ...] = ()
    """The size of each parameter, in order."""


@dataclass(frozen=True)
class CubinVariable:
    """A `__device__` or `__constant__` variable of a module; `__shared__` variables are not included."""

    name: str
    """The name in the symbol table: mangled, unless the variable has C linkage."""
    nbytes: int


@dataclass(frozen=True)
class Cubin:
    """The kernels and variables in a cubin, with their resources."""

    kernels: Mapping[str, CubinKernel]
    variables: tuple[CubinVariable, ...]
    """The variables that outlive a launch."""
    uses_device_heap: bool
    """Whether a kernel calls the device's `malloc`, whose memory outlives a launch."""
    machine_code_sha256: str
    """Hash of the instructions and constants and of the registers and memory of each kernel.

    Line information, the source's name and the time of compiling do not change the hash. Registers and memory do,
    because they decide the occupancy even where all instructions are equal.
    """


def read_cubin(data: bytes) -> Cubin:
    """Read a cubin; raise BadCubin if it has another format."""
    # A module for the CPU is asked, too: a program that meets no cubin does not import the reader.
    if int.from_bytes(data[MACHINE_OFFSET : MACHINE_OFFSET + 2], "little") != CUDA_MACHINE:
        raise BadCubin("no cubin that opbench can read: not a CUDA ELF file")
    from elftools.common.exceptions import ELFError

    try:
        return _read(data)
    except (ELFError, struct.error, ValueError, LookupError, OverflowError, AttributeError, TypeError) as error:
        raise BadCubin(f"no cubin that opbench can read: {error}") from None


def _read(data: bytes) -> Cubin:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(data))
    sections = list(elf.iter_sections())
    by_name = {section.name: section for section in sections}
    table = by_name[".symtab"]
    if not isinstance(table, SymbolTableSection):
        raise ValueError("no symbols")
    first, size = table["sh_offset"] + OTHER_OFFSET, table["sh_entsize"]
    defined = [
        (index, symbol, sections[symbol["st_shndx"]])
        for index, symbol in enumerate(table.iter_symbols())
        if isinstance(symbol["st_shndx"], int)
    ]
    kernels = {
        symbol.name: _kernel(symbol.name, index, section, by_name)
        for index, symbol, section in defined
        if data[first + index * size] & ENTRY and symbol.name
    }
    variables = tuple(
        CubinVariable(symbol.name, symbol["st_size"])
        for _, symbol, section in defined
        if symbol["st_info"]["type"] == "STT_OBJECT" and symbol["st_size"] and section.name.startswith(VARIABLES)
    )
    heap = any(symbol["st_shndx"] == "SHN_UNDEF" for symbol in table.get_symbol_by_name("malloc") or ())
    return Cubin(kernels, variables, heap, _machine_code_sha256(by_name, kernels))


def _machine_code_sha256(sections: Mapping[str, Section], kernels: Mapping[str, CubinKernel]) -> str:
    digest = hashlib.sha256()
    for name, section in sorted(sections.items()):
        if name.startswith(".text."):
            _hash_part(digest, name.encode())
            _hash_part(digest, section.data())
    for _, kernel in sorted(kernels.items()):
        taken = (kernel.name, kernel.registers, kernel.shared_bytes, kernel.local_bytes)
        _hash_part(digest, repr(taken).encode())
        _hash_part(digest, kernel.constants)
    return digest.hexdigest()


def _hash_part(digest: hashlib._Hash, part: bytes) -> None:
    """Hash a part with its length, so that different splits of the same bytes give different hashes."""
    digest.update(len(part).to_bytes(8, "little") + part)


def _kernel(name: str, index: int, code: Section, sections: Mapping[str, Section]) -> CubinKernel:
    """Return the resources of one kernel.

    `index` is the number of its symbol; `code` is the section of its instructions.
    """
    every = _attributes(sections[".nv.info"].data())
    mine = {kind: value[1] for kind, value in every if len(value) == 2 and value[0] == index}
    own = list(_attributes(sections[f".nv.info.{name}"].data())) if f".nv.info.{name}" in sections else []
    bounds = next((value for kind, value in own if kind == MAX_THREADS), ())
    sizes = {value[1] & 0xFFFF: value[2] >> 18 for kind, value in own if kind == PARAMETER and len(value) == 3}
    shared = sections.get(f".nv.shared.{name}")
    reserved = RESERVED_SHARED if ".nv.shared.reserved.0" in sections else 0
    constants = (sections.get(constant) for constant in (f".nv.constant2.{name}", ".nv.constant3"))
    return CubinKernel(
        name,
        # Older tools wrote the count into the section's header only.
        mine.get(REGISTERS) or code["sh_info"] >> 24,
        max(0, shared["sh_size"] - reserved) if shared else 0,
        max(mine.get(FRAME_SIZE, 0), mine.get(MIN_STACK_SIZE, 0)),
        bounds[0] * bounds[1] * bounds[2] if len(bounds) == 3 else 0,
        code["sh_size"],
        b"".join(section.data() for section in constants if section and section["sh_type"] != "SHT_NOBITS"),
        tuple(sizes[ordinal] for ordinal in sorted(sizes)),
    )


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the kind and the 32-bit words of each attribute in a `.nv.info` section."""
    offset = 0
    while offset + 4 <= len(content):
        shape, kind, length = struct.unpack_from("<BBH", content, offset)
        offset += 4
        if shape == WORDS:
            yield kind, struct.unpack_from(f"<{length // 4}I", content, offset)
            offset += length
