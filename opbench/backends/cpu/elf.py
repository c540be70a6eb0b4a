"""Read the one thing needed from an object file: which thread-local symbols it expects from elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path

SECTION_SYMBOLS = 2
SYMBOL_THREAD_LOCAL = 6
UNDEFINED = 0
OTHERS = frozenset({"opb_current", "_TLS_MODULE_BASE_"})
"""Undefined as well, but the runtime's own, respectively the linker's."""


def undefined_thread_locals(object_file: Path) -> list[str]:
    """Names of the `extern __shared__` arrays that a 64-bit little-endian ELF object refers to."""
    data = object_file.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{object_file.name} is no 64-bit little-endian ELF object")
    section_offset = struct.unpack_from("<Q", data, 0x28)[0]
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + index * entry_size) for index in range(count)]
    names: list[str] = []
    for header in headers:
        if header[1] == SECTION_SYMBOLS:
            names += _undefined(data, header[4], header[5], headers[header[6]][4])
    return [name for name in dict.fromkeys(names) if name not in OTHERS]


def _undefined(data: bytes, offset: int, size: int, strings: int) -> list[str]:
    names = []
    for position in range(offset, offset + size, 24):
        name, info, _, section = struct.unpack_from("<IBBH", data, position)
        if section == UNDEFINED and info & 15 == SYMBOL_THREAD_LOCAL:
            start = strings + name
            names.append(data[start : data.index(b"\0", start)].decode())
    return names
