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
VARIABLE_SECTIONS = (".nv.global", ".nv.constant3")
"""Prefixes of the sections with `__device__` and `__constant__` variables."""
KERNEL_BIT = 0x10
"""Bit of a symbol's `st_other` that marks a kernel; pyelftools drops this bit, so it is read from the file's bytes."""
OTHER_OFFSET = 5
"""Offset in bytes of `st_other` in a symbol of a 64-bit ELF file."""
RESERVED_SHARED_BYTES = 1024
"""Bytes at the start of `.nv.shared.NAME` that the driver reserves, from compute capability 9.0 on."""
MAX_THREADS, FRAME_SIZE, MIN_STACK_SIZE, PARAMETER, REGISTERS = 0x05, 0x11, 0x12, 0x17, 0x2F
"""Numbers of attributes in `.nv.info`, which NVIDIA's tools list as EIATTR_MAX_THREADS and so on."""
WORDS_FORMAT = 0x04
"""Format of an attribute that stores a length and that many bytes; other formats store one value."""


class BadCubin(OpbenchError):
    """A file is not a cubin, or it has a format that this module cannot read."""


@dataclass(frozen=True)
class CubinKernel:
    """The resources that the compiler assigned to one kernel."""

    name: str
    registers: int
    shared_bytes: int
    """Static shared memory of a block in bytes."""
    local_bytes: int
    """Bytes of a thread's stack frame: spilled registers and arrays that are indexed at run time."""
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
    """The `__device__` and `__constant__` variables, whose values outlive a launch."""
    uses_device_heap: bool
    """Whether a kernel calls the device's `malloc`, whose memory outlives a launch."""
    machine_code_sha256: str
    """Hash of the instructions and constants and of the registers and memory of each kernel.

    Line information, the source's name and the time of compiling do not change the hash. Registers and memory do,
    because they decide the occupancy even where all instructions are equal.
    """


def read_cubin(data: bytes) -> Cubin:
    """Read a cubin; raise BadCubin if it has another format."""
    # Modules for the CPU also get here; without a cubin, the ELF reader is not imported.
    if int.from_bytes(data[MACHINE_OFFSET : MACHINE_OFFSET + 2], "little") != CUDA_MACHINE:
        raise BadCubin("opbench cannot read the cubin: it is not a CUDA ELF file")
    from elftools.common.exceptions import ELFError

    try:
        return _read(data)
    except (ELFError, struct.error, ValueError, LookupError, OverflowError, AttributeError, TypeError) as error:
        raise BadCubin(f"opbench cannot read the cubin: {error}") from None


def _read(data: bytes) -> Cubin:
    """Read a cubin; raise the errors of the ELF reader for another format."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(data))
    sections = list(elf.iter_sections())
    sections_by_name = {section.name: section for section in sections}
    symbols = sections_by_name[".symtab"]
    if not isinstance(symbols, SymbolTableSection):
        raise ValueError("it has no symbol table")
    first_other_offset, symbol_bytes = symbols["sh_offset"] + OTHER_OFFSET, symbols["sh_entsize"]
    defined_symbols = [
        (index, symbol, sections[symbol["st_shndx"]])
        for index, symbol in enumerate(symbols.iter_symbols())
        if isinstance(symbol["st_shndx"], int)
    ]
    kernels = {
        symbol.name: _kernel(symbol.name, index, section, sections_by_name)
        for index, symbol, section in defined_symbols
        if data[first_other_offset + index * symbol_bytes] & KERNEL_BIT and symbol.name
    }
    variables = tuple(
        CubinVariable(symbol.name, symbol["st_size"])
        for _, symbol, section in defined_symbols
        if symbol["st_info"]["type"] == "STT_OBJECT"
        and symbol["st_size"]
        and section.name.startswith(VARIABLE_SECTIONS)
    )
    uses_device_heap = any(symbol["st_shndx"] == "SHN_UNDEF" for symbol in symbols.get_symbol_by_name("malloc") or ())
    return Cubin(kernels, variables, uses_device_heap, _machine_code_sha256(sections_by_name, kernels))


def _machine_code_sha256(sections: Mapping[str, Section], kernels: Mapping[str, CubinKernel]) -> str:
    """Return the hash that `Cubin.machine_code_sha256` describes."""
    digest = hashlib.sha256()
    for name, section in sorted(sections.items()):
        if name.startswith(".text."):
            _hash_with_length(digest, name.encode())
            _hash_with_length(digest, section.data())
    for _, kernel in sorted(kernels.items()):
        resources = (kernel.name, kernel.registers, kernel.shared_bytes, kernel.local_bytes)
        _hash_with_length(digest, repr(resources).encode())
        _hash_with_length(digest, kernel.constants)
    return digest.hexdigest()


def _hash_with_length(digest: hashlib._Hash, data: bytes) -> None:
    """Hash data with their length, so that different splits of the same bytes give different hashes."""
    digest.update(len(data).to_bytes(8, "little") + data)


def _kernel(name: str, symbol_index: int, code: Section, sections: Mapping[str, Section]) -> CubinKernel:
    """Return the resources of one kernel.

    `symbol_index` is the index of its symbol; `code` is the section of its instructions.
    """
    attributes = _attributes(sections[".nv.info"].data())
    resource_values = {
        attribute: value[1] for attribute, value in attributes if len(value) == 2 and value[0] == symbol_index
    }
    kernel_attributes = list(_attributes(sections[f".nv.info.{name}"].data())) if f".nv.info.{name}" in sections else []
    launch_bounds = next((value for attribute, value in kernel_attributes if attribute == MAX_THREADS), ())
    parameter_sizes = {
        value[1] & 0xFFFF: value[2] >> 18
        for attribute, value in kernel_attributes
        if attribute == PARAMETER and len(value) == 3
    }
    shared_section = sections.get(f".nv.shared.{name}")
    reserved_bytes = RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in sections else 0
    constants = (sections.get(constant) for constant in (f".nv.constant2.{name}", ".nv.constant3"))
    return CubinKernel(
        name,
        # Older tools wrote the count into the section's header only.
        resource_values.get(REGISTERS) or code["sh_info"] >> 24,
        max(0, shared_section["sh_size"] - reserved_bytes) if shared_section else 0,
        max(resource_values.get(FRAME_SIZE, 0), resource_values.get(MIN_STACK_SIZE, 0)),
        launch_bounds[0] * launch_bounds[1] * launch_bounds[2] if len(launch_bounds) == 3 else 0,
        code["sh_size"],
        b"".join(section.data() for section in constants if section and section["sh_type"] != "SHT_NOBITS"),
        tuple(parameter_sizes[ordinal] for ordinal in sorted(parameter_sizes)),
    )


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the attribute number and the 32-bit words of each attribute in a `.nv.info` section."""
    offset = 0
    while offset + 4 <= len(content):
        value_format, attribute, length = struct.unpack_from("<BBH", content, offset)
        offset += 4
        if value_format == WORDS_FORMAT:
            yield attribute, struct.unpack_from(f"<{length // 4}I", content, offset)
            offset += length
