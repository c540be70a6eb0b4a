"""Reads a cubin, an ELF file: what each kernel takes of a multiprocessor, and its constants."""

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
"""From compute capability 9.0 on `.nv.shared.NAME` begins with what the driver keeps for itself."""
MAX_THREADS, FRAME_SIZE, MIN_STACK_SIZE, PARAMETER, REGISTERS = 0x05, 0x11, 0x12, 0x17, 0x2F
"""Attributes of `.nv.info`: EIATTR_MAX_THREADS and so on in the tools' own listings."""
WORDS = 0x04
"""Format of an attribute with a length and that many bytes; the others have a value in the length's place."""


class BadCubin(OpbenchError):
    """The bytes are no cubin that this module can read."""


@dataclass(frozen=True)
class CubinKernel:
    """What the compiler decided for one kernel."""

    name: str
    registers: int
    shared_bytes: int
    """Static only."""
    local_bytes: int
    """Stack frame of a thread: spilled registers and arrays that are indexed at run time."""
    bound_threads: int
    """The most threads that `__launch_bounds__` allows; 0 where nothing was said."""
    code_bytes: int
    constants: bytes
    """What the compiler and `__constant__` put beside the code, which SASS only refers to."""
    parameter_bytes: tuple[int, ...] = ()
    """The size of each parameter, in order."""


@dataclass(frozen=True)
class CubinVariable:
    """A `__device__` or `__constant__` variable of a module; `__shared__` ones are none."""

    name: str
    """As the symbol table has the name: mangled, unless the variable is a plain one of C's."""
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
    """The kernels of a cubin by name; raises BadCubin."""
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
    """The variables of a cubin that outlive a launch; raises BadCubin."""
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
    """Whether a kernel of a cubin calls the device's `malloc`, whose memory outlives a launch; raises BadCubin."""
    try:
        return any(symbol.name == "malloc" and not symbol.section for symbol in _symbols(_sections(data)))
    except (struct.error, ValueError, IndexError, KeyError, StopIteration) as error:
        raise BadCubin(f"no cubin that opbench can read: {error}") from None


def machine_code_sha256(data: bytes) -> str:
    """A hash of what a cubin makes the GPU do: instructions, constants and what each kernel takes of a multiprocessor.

    Line information, the source's name and the time of compiling are not in it. Registers and memory are, as they
    decide the occupancy even where every instruction is the same. Raises BadCubin.
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
    """With its length, so that two parts never read like two others."""
    digest.update(len(part).to_bytes(8, "little") + part)


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQII", data, offset + i * size) for i in range(count)]
    start = raw[names][4]
    found = []
    for name, kind, _, _, begin, length, link, info in raw:
        content = b"" if kind == 8 else data[begin : begin + length]  # 8: takes memory, not room in the file
        found.append(_Section(_text(data, start + name), info, length, link, content))
    return found


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    table = next(s for s in sections if s.name == ".symtab")
    names = sections[table.link].content
    found = []
    for name, info, other, section, _, size in struct.iter_unpack("<IBBHQQ", table.content):
        found.append(_Symbol(_text(names, name), other, section, info & 15, size))
    return found


def _kernel(symbol: _Symbol, sections: list[_Section], symbols: list[_Symbol]) -> CubinKernel:
    by_name = {section.name: section for section in sections}
    code = sections[symbol.section]
    told = _attributes(by_name[".nv.info"].content)
    mine = {
        kind: value[1]
        for kind, value in told
        if len(value) == 2 and value[0] < len(symbols) and symbols[value[0]] == symbol
    }
    own = by_name.get(f".nv.info.{symbol.name}")
    told_of_it = list(_attributes(own.content)) if own else []
    bounds = next((v for k, v in told_of_it if k == MAX_THREADS), ())
    sizes = {value[1] & 0xFFFF: value[2] >> 18 for kind, value in told_of_it if kind == PARAMETER and len(value) == 3}
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
    place = 0
    while place + 4 <= len(content):
        shape, kind, length = struct.unpack_from("<BBH", content, place)
        place += 4
        if shape == WORDS:
            yield kind, struct.unpack_from(f"<{length // 4}I", content, place)
            place += length
