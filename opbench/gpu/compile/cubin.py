"""Read a cubin, an ELF file: the registers, memory, code and constants of each kernel."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from opbench.errors import OpbenchError

OBJECT = 1
"""Type of a symbol that is a variable."""
VARIABLES = (".nv.global", ".nv.constant3")
"""Sections of `__device__` variables, with and without first values, and of `__constant__` ones."""
ENTRY = 0x10
"""Bit of a symbol's `st_other` that marks a kernel."""
RESERVED_SHARED = 1024
"""From compute capability 9.0 on `.nv.shared.NAME` begins with a part that the driver reserves."""
MAX_THREADS, FRAME_SIZE, MIN_STACK_SIZE, PARAMETER, REGISTERS = 0x05, 0x11, 0x12, 0x17, 0x2F
"""Attributes of `.nv.info`: EIATTR_MAX_THREADS and so on in the tools' own listings."""
WORDS = 0x04
"""Format of an attribute that stores a length and that many bytes; other formats store a value in its place."""


class BadCubin(OpbenchError):
    """The bytes are no cubin that this module can read."""


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
class _Section:
    name: str
    info: int
    size: int
    link: int
    content: bytes


@dataclass(frozen=True)
class _Symbol:
    name: str
    other: int
    section: int
    kind: int = 0
    size: int = 0


def read_cubin(data: bytes) -> dict[str, CubinKernel]:
    """Return the kernels of a cubin by name; raise BadCubin."""
    try:
        sections = _sections(data)
        symbols = _symbols(sections)
        return {
            symbol.name: _kernel(symbol, sections, symbols)
            for symbol in symbols
            if symbol.other & ENTRY and 0 < symbol.section < len(sections) and symbol.name
        }
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise BadCubin(f"no cubin that opbench can read: {error}") from None


def read_variables(data: bytes) -> list[CubinVariable]:
    """Return the variables of a cubin that outlive a launch; raise BadCubin."""
    try:
        sections = _sections(data)
        return [
            CubinVariable(symbol.name, symbol.size)
            for symbol in _symbols(sections)
            if symbol.kind == OBJECT
            and symbol.size
            and 0 < symbol.section < len(sections)
            and sections[symbol.section].name.startswith(VARIABLES)
        ]
    except (struct.error, ValueError, IndexError, KeyError, StopIteration) as error:
        raise BadCubin(f"no cubin that opbench can read: {error}") from None


def uses_device_heap(data: bytes) -> bool:
    """Return whether a kernel calls the device's `malloc`, whose memory outlives a launch; raise BadCubin."""
    try:
        return any(symbol.name == "malloc" and not symbol.section for symbol in _symbols(_sections(data)))
    except (struct.error, ValueError, IndexError, KeyError, StopIteration) as error:
        raise BadCubin(f"no cubin that opbench can read: {error}") from None


def machine_code_sha256(data: bytes) -> str:
    """Return a hash of a cubin's instructions and constants and of the registers and memory of each kernel.

    Line information, the source's name and the time of compiling do not change the hash. Registers and memory do,
    because they decide the occupancy even where all instructions are equal. Raise BadCubin.
    """
    digest = hashlib.sha256()
    kernels = read_cubin(data)
    for section in sorted(_sections(data), key=lambda section: section.name):
        if section.name.startswith(".text."):
            _hash_part(digest, section.name.encode())
            _hash_part(digest, section.content)
    for kernel in sorted(kernels.values(), key=lambda kernel: kernel.name):
        taken = (kernel.name, kernel.registers, kernel.shared_bytes, kernel.local_bytes)
        _hash_part(digest, repr(taken).encode())
        _hash_part(digest, kernel.constants)
    return digest.hexdigest()


def _hash_part(digest: hashlib._Hash, part: bytes) -> None:
    """Hash a part with its length, so that different splits of the same bytes give different hashes."""
    digest.update(len(part).to_bytes(8, "little") + part)


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQII", data, offset + i * size) for i in range(count)]
    start = raw[names][4]
    sections = []
    for name, kind, _, _, begin, length, link, info in raw:
        content = b"" if kind == 8 else data[begin : begin + length]  # 8: SHT_NOBITS has no bytes in the file
        sections.append(_Section(_text(data, start + name), info, length, link, content))
    return sections


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    table = next(s for s in sections if s.name == ".symtab")
    names = sections[table.link].content
    symbols = []
    for name, info, other, section, _, size in struct.iter_unpack("<IBBHQQ", table.content):
        symbols.append(_Symbol(_text(names, name), other, section, info & 15, size))
    return symbols


def _kernel(symbol: _Symbol, sections: list[_Section], symbols: list[_Symbol]) -> CubinKernel:
    by_name = {section.name: section for section in sections}
    code = sections[symbol.section]
    attributes = _attributes(by_name[".nv.info"].content)
    mine = {
        kind: value[1]
        for kind, value in attributes
        if len(value) == 2 and value[0] < len(symbols) and symbols[value[0]] == symbol
    }
    own = by_name.get(f".nv.info.{symbol.name}")
    own_attributes = list(_attributes(own.content)) if own else []
    bounds = next((v for k, v in own_attributes if k == MAX_THREADS), ())
    sizes = {
        value[1] & 0xFFFF: value[2] >> 18 for kind, value in own_attributes if kind == PARAMETER and len(value) == 3
    }
    shared = by_name.get(f".nv.shared.{symbol.name}")
    reserved = RESERVED_SHARED if ".nv.shared.reserved.0" in by_name else 0
    constants = (by_name.get(name) for name in (f".nv.constant2.{symbol.name}", ".nv.constant3"))
    return CubinKernel(
        symbol.name,
        # Older tools wrote the count into the section's header only.
        mine.get(REGISTERS) or code.info >> 24,
        max(0, shared.size - reserved) if shared else 0,
        max(mine.get(FRAME_SIZE, 0), mine.get(MIN_STACK_SIZE, 0)),
        bounds[0] * bounds[1] * bounds[2] if len(bounds) == 3 else 0,
        code.size,
        b"".join(section.content for section in constants if section),
        tuple(sizes[ordinal] for ordinal in sorted(sizes)),
    )


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Kind and 32-bit words of each attribute of a `.nv.info` section that has words."""
    offset = 0
    while offset + 4 <= len(content):
        shape, kind, length = struct.unpack_from("<BBH", content, offset)
        offset += 4
        if shape == WORDS:
            yield kind, struct.unpack_from(f"<{length // 4}I", content, offset)
            offset += length
